// Plan: how a problem will be computed. Made once, run many times, from any number of threads.
#pragma once

#include <sirdar/device.hpp>
#include <sirdar/problem.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sirdar {

// Runs fn(arg, index, slot) for every index in [0, count), each exactly once, and returns when all
// are done. `slot` is below max_slots and never shared by two calls running at the same time;
// scratch memory belongs to a slot. Implement it over OpenMP, oneTBB or your own pool; fn does not
// throw.
struct Executor {
  using Function = void (*)(void* arg, int64_t index, int slot);
  void (*parallel_for)(void* context, int64_t count, int max_slots, Function fn,
                       void* arg) = nullptr;
  void* context = nullptr;
};

// A CUDA stream, as the driver's handle; ignored by CPU implementations.
using Stream = void*;

struct NamedTensor {
  std::string name;
  TensorView view;
};

// Pointers of one call. Shapes slowest axis first; Problem names in the brackets. Inputs are never
// written. A view the problem does not ask for must be absent, one it asks for must be present.
struct Args {
  // dense [batch, seqlen, heads, dim] or ragged [total, heads, dim]; the last axis has stride 1.
  // paged k, v: [num_pages, page_size, num_heads_kv, dim]
  TensorView q, k, v;
  TensorView out;  // like q with head_dim_v columns; written by forward, read by backward
  // [batch, num_heads_q, seqlen_q] fp32, natural log; ragged: [num_heads_q, total_q]
  TensorView lse;
  TensorView max_logit;  // shape of lse, fp32: largest visible logit of each row, -inf if none

  TensorView cu_seqlens_q, cu_seqlens_k;  // [batch + 1] int32
  TensorView seqused_q, seqused_k;        // [batch] int32
  TensorView page_table;                  // [batch, max_pages] int32
  TensorView document_q, document_k;      // [batch|1, seqlen_q], [batch|1, seqlen_k] int32
  TensorView mask;                   // [batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1] boolean
  TensorView bias;                   // same axes; fp32, bf16 or fp16
  TensorView alibi;                  // [num_heads_q] or [batch|1, num_heads_q] fp32
  TensorView sink;                   // [num_heads_q] fp32
  std::vector<NamedTensor> tensors;  // what score_mod and mask_mod read
  std::vector<std::pair<std::string, double>> scalars;

  uint64_t dropout_seed = 0, dropout_offset = 0;

  // backward: dout like out, dlse like lse; gradients like what they are the gradient of,
  // dbias and expression tensors in fp32
  TensorView dout, dlse;
  TensorView dq, dk, dv, dbias, dsink;
  std::vector<NamedTensor> dtensors;

  // At least Plan::workspace_bytes() bytes, 64-byte aligned, not shared with a concurrent run.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

struct PlanOptions {
  std::string implementation;    // of the registry ("cpu.forward", "reference"); empty: choose
  bool allow_reference = false;  // may the float64 reference serve what nothing faster understands?
  std::string isa;               // "scalar", "avx2", "avx512", ...: use this one; empty: the best
  int num_threads = 0;           // 0: as many as the device has
  const Executor* executor = nullptr;  // null: the library's own pool; must outlive the plan
  std::vector<std::pair<std::string, std::string>> knobs;  // fields of the chosen config, by name
};

// Why an implementation was not chosen.
struct Refusal {
  std::string implementation, reason;
};

class Plan {
 public:
  // Validates, chooses, configures. The refusals are in the message when nothing may run.
  SIRDAR_API static Result<Plan> create(const Problem& problem, const PlanOptions& options = {},
                                        const Device& device = Device::host());

  SIRDAR_API const Problem& problem() const;
  SIRDAR_API const Device& device() const;
  SIRDAR_API const std::string& name() const;  // "cpu.forward"
  SIRDAR_API std::string config() const;       // "isa=avx512 block_m=128 block_n=128"
  SIRDAR_API size_t workspace_bytes() const;   // what run() needs in Args, a multiple of 64
  SIRDAR_API const std::vector<Refusal>& refusals() const;
  SIRDAR_API std::string explain() const;  // the whole decision as text

  // Compiles and loads what run() needs, so that the first run is as fast as the others; needed
  // before a run that is captured into a CUDA graph. Nothing to do on a CPU.
  SIRDAR_API Status prepare() const;

  // Checks the arguments against the problem, then computes. On an error nothing has been written.
  SIRDAR_API Status run(const Args& args, Stream stream = nullptr) const;

  struct State;  // internal
  SIRDAR_API explicit Plan(std::shared_ptr<const State> state);
  // Copies share one immutable state. There is no move: a plan is never without its state.
  SIRDAR_API Plan(const Plan&);
  SIRDAR_API Plan& operator=(const Plan&);

 private:
  std::shared_ptr<const State> state_;
};

// Merges two partial results over disjoint keys of the same queries (docs/semantics.md):
// out = softmax-weighted sum of out_a and out_b, lse = log(exp(lse_a) + exp(lse_b)).
// Shapes [batch, seqlen_q, num_heads_q, head_dim_v] and [batch, num_heads_q, seqlen_q], or ragged;
// outputs may be the same memory as the a inputs. (0, -inf) is the identity, bit for bit.
struct MergeArgs {
  TensorView out_a, lse_a, out_b, lse_b;
  TensorView out, lse;
};
SIRDAR_API Status merge(const MergeArgs& args);

}  // namespace sirdar
