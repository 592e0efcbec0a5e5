#include "attend_flags.h"

#include <CLI/CLI.hpp>

namespace sirdar::cli {
namespace {

constexpr const char* kFooter =
    R"(A file F is x.npy or x.safetensors:name. Shapes are [batch, seqlen, heads, dim], or with
--layout bhsd [batch, heads, seqlen, dim]; ragged ones [total, heads, dim] with cu_seqlens.

Examples:
  sirdar attend --q q.npy --k k.npy --v v.npy --causal -o out.npy --check
  sirdar attend --q qkv.safetensors:q --k qkv.safetensors:k --v qkv.safetensors:v \
    --layout bhsd --window 128,0 -o result.safetensors:out --lse result.safetensors:lse
  sirdar attend --q q.npy --k k.npy --v v.npy --score-mod 'score + slope[h] * (k - q_pos)' \
    --tensor slope=slope.npy --dout dout.npy --dq dq.npy --dk dk.npy --dv dv.npy)";

class Declarer {
 public:
  explicit Declarer(CLI::App& app) : app_(app) {}
  void group(const char* name) { group_ = name; }
  template <class T>
  void option(const char* name, T& target, const char* value, const char* text) {
    app_.add_option(name, target, text)->type_name(value)->group(group_);
  }
  template <class T>
  void flag(const char* name, T& target, const char* text) {
    app_.add_flag(name, target, text)->group(group_);
  }

 private:
  CLI::App& app_;
  const char* group_ = "";
};

void declare_problem(Declarer& declare, AttendFlags& flags) {
  declare.group("Inputs");
  declare.option("--q", flags.q, "F", "queries");
  declare.option("--k", flags.k, "F", "keys; num_heads_q is a multiple of their heads");
  declare.option("--v", flags.v, "F", "values");
  declare.option("--layout", flags.layout, "bshd|bhsd", "order of the axes (default bshd)");
  declare.option(
      "--dtype", flags.dtype, "T",
      "round q, k, v and dout to T first: fp32, bf16, fp16, fp8_e4m3; allows float64 files");
  declare.option("--cu-seqlens-q", flags.cu_seqlens_q, "F", "[batch + 1] integers: ragged queries");
  declare.option("--cu-seqlens-k", flags.cu_seqlens_k, "F", "[batch + 1] integers: ragged keys");
  declare.option("--seqused-q", flags.seqused_q, "F", "[batch] integers: rows used");
  declare.option("--seqused-k", flags.seqused_k, "F", "[batch] integers: keys used");
  declare.option("--page-table", flags.page_table, "F",
                 "[batch, max_pages] integers: k, v are [num_pages, page_size, heads, dim]");

  declare.group("Masks");
  declare.flag("--causal{bottom-right}", flags.causal,
               "row i sees keys up to i + seqlen_k - seqlen_q; --causal=top-left: up to i");
  declare.option("--window", flags.window, "LEFT,RIGHT",
                 "keys besides the diagonal; empty: unbounded");
  declare.option("--chunk", flags.chunk, "N", "only keys of the same chunk of N positions");
  declare.option("--document-q", flags.document_q, "F", "[batch|1, seqlen_q] integers");
  declare.option("--document-k", flags.document_k, "F", "[batch|1, seqlen_k] integers");
  declare.option(
      "--mask", flags.mask, "F",
      "[batch|1, heads|1, seqlen_q|1, seqlen_k|1] or [seqlen_q, seqlen_k] booleans, true: visible");
  declare.option("--mask-mod", flags.mask_mod, "TEXT", "an expression over b, h, q, k, q_pos");

  declare.group("Scores");
  declare.option("--scale", flags.scale, "X", "softmax_scale (default 1/sqrt(head_dim))");
  declare.option("--softcap", flags.softcap, "X", "scores become X tanh(score / X)");
  declare.option("--bias", flags.bias, "F", "added to the scores; axes as --mask");
  declare.option("--alibi", flags.alibi, "F", "[heads] or [batch|1, heads] slopes");
  declare.option("--sink", flags.sink, "F", "[heads]: one more logit for each head");
  declare.option("--score-mod", flags.score_mod, "TEXT",
                 "an expression over score, b, h, q, k, q_pos");
  declare.option("--tensor", flags.tensor, "NAME=F", "a tensor that an expression reads");
  declare.option("--scalar", flags.scalar, "NAME=X", "a number that an expression reads");
  declare.option("--dropout", flags.dropout, "P,SEED,OFFSET", "drops weights with probability P");
}

void declare_run(Declarer& declare, AttendFlags& flags) {
  declare.group("How");
  declare.option("--backend", flags.backend, "auto|reference|cpu|cuda",
                 "auto (default) takes the float64 reference where nothing faster serves");
  declare.option("--threads", flags.threads, "N", "threads (default: as many as may run)");
  declare.option("--isa", flags.isa, "X", "scalar, avx2, avx512, ...: this instruction set");
  declare.flag("--check", flags.check, "compare with float64; exit code 1 if it is too far off");
  declare.flag("--verbose", flags.is_verbose, "print the plan too");

  declare.group("Outputs");
  declare.option("-o,--out", flags.out, "F", "the result");
  declare.option("--lse", flags.lse, "F", "log-sum-exp of each row");
  declare.option("--max-logit", flags.max_logit, "F", "largest logit of each row");

  declare.group("Backward");
  declare.option("--dout", flags.dout, "F", "gradient of the result: asks for the backward pass");
  declare.option("--dlse", flags.dlse, "F", "gradient of lse");
  declare.option("--dq", flags.dq, "F", "output: gradient of q");
  declare.option("--dk", flags.dk, "F", "output: gradient of k");
  declare.option("--dv", flags.dv, "F", "output: gradient of v");
  declare.option("--dbias", flags.dbias, "F", "output: gradient of the bias");
  declare.option("--dsink", flags.dsink, "F", "output: gradient of the sinks");
  declare.option("--dtensor", flags.dtensor, "NAME=F", "output: gradient of an expression tensor");
}

}  // namespace

void declare_attend_flags(CLI::App& app, AttendFlags& flags) {
  Declarer declare(app);
  declare_problem(declare, flags);
  declare_run(declare, flags);
  app.footer(kFooter);
}

}  // namespace sirdar::cli
