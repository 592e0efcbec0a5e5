// Problem: what to compute, without pointers. docs/semantics.md says what each field means.
#pragma once

#include <sirdar/tensor.hpp>

#include <optional>
#include <string>
#include <vector>

namespace sirdar {

// Decoding is Op::forward with few query rows: a plan sees the lengths and chooses for itself.
enum class Op : uint8_t { forward, backward };

// Where sequences lie. dense: [batch, seqlen, heads, dim]. ragged: [total, heads, dim] with
// cu_seqlens. paged (K/V only): [num_pages, page_size, heads, dim] with a page_table and seqused_k.
enum class Layout : uint8_t { dense, ragged, paged };

// Which corner causal masks, windows and chunks line up with: d = seqlen_k - seqlen_q, or d = 0.
enum class Alignment : uint8_t { bottom_right, top_left };

// The structured masks. All that are set apply together (a pair must be allowed by each).
// With d from the alignment, query row i sees key j if
//   causal:  j <= i + d
//   window:  i + d - window_left <= j <= i + d + window_right   (an absent side is unbounded)
//   chunk:   floor(j / chunk) == floor((i + d) / chunk)
struct Mask {
  bool is_causal = false;
  std::optional<int64_t> window_left, window_right;  // >= 0 when present
  int64_t chunk_size = 0;                            // 0: off
  Alignment alignment = Alignment::bottom_right;

  static Mask full() { return {}; }
  static Mask causal(Alignment alignment = Alignment::bottom_right) {
    Mask mask;
    mask.is_causal = true;
    mask.alignment = alignment;
    return mask;
  }
  static Mask window(std::optional<int64_t> left, std::optional<int64_t> right) {
    Mask mask;
    mask.window_left = left;
    mask.window_right = right;
    return mask;
  }
  static Mask chunk(int64_t size) {
    Mask mask;
    mask.chunk_size = size;
    return mask;
  }
  bool operator==(const Mask&) const = default;
};

// The axes of [batch, num_heads_q, seqlen_q, seqlen_k] that a bias or boolean mask really has;
// along the others it has size 1 and is broadcast.
struct Axes {
  bool batch = true, head = true, query = true, key = true;
  bool operator==(const Axes&) const = default;
};

// A tensor that a score_mod or mask_mod expression reads by name.
struct ExpressionTensor {
  std::string name;
  DType dtype = DType::fp32;  // fp32, int32 or boolean
  int rank = 1;               // 1..4
  bool needs_grad = false;    // backward: its gradient is an output (fp32 tensors only)
  bool operator==(const ExpressionTensor&) const = default;
};

// The set of SIRDAR_FEATURES bits that a problem uses.
struct FeatureSet {
  uint64_t bits = 0;
  constexpr bool contains(FeatureSet other) const { return (bits & other.bits) == other.bits; }
  constexpr FeatureSet minus(FeatureSet other) const { return {bits & ~other.bits}; }
  constexpr bool empty() const { return bits == 0; }
  constexpr FeatureSet operator|(FeatureSet other) const { return {bits | other.bits}; }
  bool operator==(const FeatureSet&) const = default;
  SIRDAR_API std::string str() const;  // "causal, gqa, softcap"
};

namespace feature {
#define SIRDAR_ROW(name, bit, text) inline constexpr FeatureSet name{uint64_t{1} << (bit)};
SIRDAR_FEATURES(SIRDAR_ROW)
#undef SIRDAR_ROW
}  // namespace feature

struct Problem {
  Op op = Op::forward;
  int64_t batch = 1;
  int64_t seqlen_q = 0, seqlen_k = 0;  // maxima when ragged, paged or shortened by seqused
  int64_t total_q = 0, total_k = 0;    // rows of a ragged side; 0 where that side is not ragged
  int64_t num_heads_q = 1, num_heads_kv = 1;
  int64_t head_dim = 64, head_dim_v = 0;  // 1..512; head_dim_v 0: same as head_dim
  DType dtype_q = DType::fp32, dtype_kv = DType::fp32;
  std::optional<DType> dtype_out;  // unset: as q (bf16 for fp8)

  Layout layout_q = Layout::dense;   // dense or ragged
  Layout layout_kv = Layout::dense;  // dense, ragged or paged
  int64_t page_size = 0;             // with Layout::paged
  bool has_seqused_q = false, has_seqused_k = false;

  Mask mask;
  bool has_document = false;     // document_q, document_k: visible where ids are equal
  bool has_mask_tensor = false;  // boolean, true = visible
  Axes mask_axes;
  std::string mask_mod, score_mod;  // expressions; empty: none (docs/expressions.md)
  std::vector<ExpressionTensor> tensors;
  std::vector<std::string> scalars;  // names; the values travel in Args

  std::optional<float> softmax_scale;  // unset: 1/sqrt(head_dim); 0 and negative are legal
  float softcap = 0;                   // 0: off
  bool has_bias = false;
  DType dtype_bias = DType::fp32;
  Axes bias_axes;
  bool has_alibi = false;  // slopes [batch|1, num_heads_q]
  bool has_sink = false;   // [num_heads_q]
  float dropout_p = 0;     // 0: off

  bool needs_lse = false, needs_max_logit = false;                  // forward outputs
  bool has_dlse = false, needs_dbias = false, needs_dsink = false;  // backward

  bool deterministic = true;  // backward: same bits every run
  // The same bits whatever else is in the batch; on the CPU always so.
  bool batch_invariant = false;

  // What is meant where a field was left unset.
  SIRDAR_API int64_t value_dim() const;   // head_dim_v or head_dim
  SIRDAR_API DType output_dtype() const;  // dtype_out or its default
  SIRDAR_API float scale() const;         // softmax_scale or 1/sqrt(head_dim)
  int64_t group_size() const { return num_heads_kv > 0 ? num_heads_q / num_heads_kv : 0; }

  SIRDAR_API FeatureSet features() const;  // derived, never set by hand

  // The problem as one line, e.g. "fwd b2 sq4096 sk4096 hq32 hkv8 d128 bf16 causal";
  // parse(str()) gives an equal problem. docs/problem_strings.md lists the words.
  SIRDAR_API std::string str() const;
  SIRDAR_API static Result<Problem> parse(std::string_view text);

  // Every rule that needs no tensors; ok, or the first that is broken (docs/rules.md).
  SIRDAR_API Status validate() const;

  bool operator==(const Problem&) const = default;
};

}  // namespace sirdar
