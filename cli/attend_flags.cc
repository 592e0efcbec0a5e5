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

}  // namespace

void declare_attend_flags(CLI::App& app, AttendFlags& flags) {
  const auto add = [&](const char* name, auto& target, const char* value, const char* group,
                       const char* text) {
    app.add_option(name, target, text)->type_name(value)->group(group);
  };
  const char* group = "Inputs";
  add("--q", flags.q, "F", group, "queries");
  add("--k", flags.k, "F", group, "keys; num_heads_q is a multiple of their heads");
  add("--v", flags.v, "F", group, "values");
  add("--layout", flags.layout, "bshd|bhsd", group, "order of the axes (default bshd)");
  add("--dtype", flags.dtype, "T", group,
      "round q, k, v and dout to T first: fp32, bf16, fp16, fp8_e4m3; allows float64 files");
  add("--cu-seqlens-q", flags.cu_seqlens_q, "F", group, "[batch + 1] integers: ragged queries");
  add("--cu-seqlens-k", flags.cu_seqlens_k, "F", group, "[batch + 1] integers: ragged keys");
  add("--seqused-q", flags.seqused_q, "F", group, "[batch] integers: rows used");
  add("--seqused-k", flags.seqused_k, "F", group, "[batch] integers: keys used");
  add("--page-table", flags.page_table, "F", group,
      "[batch, max_pages] integers: k, v are [num_pages, page_size, heads, dim]");

  group = "Masks";
  app.add_flag("--causal{bottom-right}", flags.causal,
               "row i sees keys up to i + seqlen_k - seqlen_q; --causal=top-left: up to i")
      ->group(group);
  add("--window", flags.window, "LEFT,RIGHT", group, "keys besides the diagonal; empty: unbounded");
  add("--chunk", flags.chunk, "N", group, "only keys of the same chunk of N positions");
  add("--document-q", flags.document_q, "F", group, "[batch|1, seqlen_q] integers");
  add("--document-k", flags.document_k, "F", group, "[batch|1, seqlen_k] integers");
  add("--mask", flags.mask, "F", group,
      "[batch|1, heads|1, seqlen_q|1, seqlen_k|1] or [seqlen_q, seqlen_k] booleans, true: visible");
  add("--mask-mod", flags.mask_mod, "TEXT", group, "an expression over b, h, q, k, q_pos");

  group = "Scores";
  add("--scale", flags.scale, "X", group, "softmax_scale (default 1/sqrt(head_dim))");
  add("--softcap", flags.softcap, "X", group, "scores become X tanh(score / X)");
  add("--bias", flags.bias, "F", group, "added to the scores; axes as --mask");
  add("--alibi", flags.alibi, "F", group, "[heads] or [batch|1, heads] slopes");
  add("--sink", flags.sink, "F", group, "[heads]: one more logit for each head");
  add("--score-mod", flags.score_mod, "TEXT", group, "an expression over score, b, h, q, k, q_pos");
  add("--tensor", flags.tensor, "NAME=F", group, "a tensor that an expression reads");
  add("--scalar", flags.scalar, "NAME=X", group, "a number that an expression reads");
  add("--dropout", flags.dropout, "P,SEED,OFFSET", group, "drops weights with probability P");

  group = "How";
  add("--backend", flags.backend, "auto|reference|cpu|cuda", group,
      "auto (default) takes the float64 reference where nothing faster serves");
  add("--threads", flags.threads, "N", group, "threads (default: as many as may run)");
  add("--isa", flags.isa, "X", group, "scalar, avx2, avx512, ...: this instruction set");
  app.add_flag("--check", flags.check, "compare with float64; exit code 1 if it is too far off")
      ->group(group);
  app.add_flag("--verbose", flags.is_verbose, "print the plan too")->group(group);

  group = "Outputs";
  add("-o,--out", flags.out, "F", group, "the result");
  add("--lse", flags.lse, "F", group, "log-sum-exp of each row");
  add("--max-logit", flags.max_logit, "F", group, "largest logit of each row");

  group = "Backward";
  add("--dout", flags.dout, "F", group, "gradient of the result: asks for the backward pass");
  add("--dlse", flags.dlse, "F", group, "gradient of lse");
  add("--dq", flags.dq, "F", group, "output: gradient of q");
  add("--dk", flags.dk, "F", group, "output: gradient of k");
  add("--dv", flags.dv, "F", group, "output: gradient of v");
  add("--dbias", flags.dbias, "F", group, "output: gradient of the bias");
  add("--dsink", flags.dsink, "F", group, "output: gradient of the sinks");
  add("--dtensor", flags.dtensor, "NAME=F", group, "output: gradient of an expression tensor");
  app.footer(kFooter);
}

}  // namespace sirdar::cli
