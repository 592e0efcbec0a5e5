#include "api/c_structs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sirdar {
namespace {

// A count beyond this is a field that was never set, not a list.
constexpr size_t kMaxListed = 1024;

Status invalid(std::string_view argument, std::string_view sentence) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", argument, sentence),
                std::string(argument));
}

sirdar_problem defaults(const sirdar_problem*) {
  sirdar_problem c{};
  c.dtype_out = SIRDAR_DTYPE_default;
  c.batch = c.num_heads_q = c.num_heads_kv = 1;
  c.head_dim = 64;
  c.window_left = c.window_right = SIRDAR_UNBOUNDED;
  c.mask_axes = c.bias_axes = SIRDAR_AXIS_all;
  c.deterministic = 1;
  return c;
}
sirdar_jit_options defaults(const sirdar_jit_options*) {
  sirdar_jit_options c{};
  c.may_compile = 1;
  return c;
}
template <class T>
T defaults(const T*) {
  return T{};
}

// What the oldest caller must bring, and how the struct is called.
struct Shape {
  std::string_view name;
  size_t least;
};
constexpr Shape shape_of(const sirdar_problem*) {
  return {"problem", offsetof(sirdar_problem, layout_q)};
}
constexpr Shape shape_of(const sirdar_plan_options*) {
  return {"options", offsetof(sirdar_plan_options, implementation)};
}
constexpr Shape shape_of(const sirdar_executor*) { return {"executor", sizeof(sirdar_executor)}; }
constexpr Shape shape_of(const sirdar_args*) { return {"args", offsetof(sirdar_args, lse)}; }
constexpr Shape shape_of(const sirdar_merge_args*) { return {"args", sizeof(sirdar_merge_args)}; }
constexpr Shape shape_of(const sirdar_jit_options*) {
  return {"options", sizeof(sirdar_jit_options)};
}

template <class T>
Status check_size(const T* pointer, size_t struct_size) {
  constexpr Shape shape = shape_of(static_cast<const T*>(nullptr));
  constexpr size_t kMaxSize = 1 << 16;
  if (pointer == nullptr) return invalid(shape.name, "it is NULL; pass a struct.");
  if (struct_size < shape.least || struct_size % alignof(T) != 0 || struct_size > kMaxSize)
    return invalid(fmt::format("{}.struct_size", shape.name),
                   fmt::format("{} is not the size of any version of the struct; call the init "
                               "function with sizeof.",
                               struct_size));
  return {};
}

template <class T>
Status init(T* target, size_t struct_size) {
  if (Status status = check_size(target, struct_size); !status.ok()) return status;
  T value = defaults(target);
  value.struct_size = struct_size;
  std::memset(static_cast<void*>(target), 0, struct_size);
  std::memcpy(static_cast<void*>(target), &value, std::min(struct_size, sizeof(T)));
  return {};
}

// The caller's struct as this library's version of it.
template <class T>
Result<T> adopted(const T* source) {
  if (Status status = check_size(source, source != nullptr ? source->struct_size : 0); !status.ok())
    return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(source);
  for (size_t i = sizeof(T); i < source->struct_size; ++i)
    if (bytes[i] != 0)
      return invalid(shape_of(source).name,
                     fmt::format("byte {} is set and this version of the library ends at {}; clear "
                                 "the newer field or update the library.",
                                 i, sizeof(T)));
  T value = defaults(source);
  std::memcpy(static_cast<void*>(&value), source, std::min(source->struct_size, sizeof(T)));
  return value;
}

// Gathers fields and keeps the first error.
class Reader {
 public:
  bool flag(std::string_view name, int32_t value) {
    if (value != 0 && value != 1) fail(name, fmt::format("{} is not a flag; use 0 or 1.", value));
    return value == 1;
  }
  template <class E>
  E enumerator(std::string_view name, int32_t value, int32_t count) {
    if (value < 0 || value >= count)
      fail(name, fmt::format("{} is not one of its values, 0 to {}.", value, count - 1));
    return static_cast<E>(value);
  }
  DType dtype(std::string_view name, int32_t value) {
    constexpr int32_t kCount = SIRDAR_DTYPE_boolean + 1;
    return enumerator<DType>(name, value, kCount);
  }
  Axes axes(std::string_view name, int32_t value) {
    if (value < 0 || value > SIRDAR_AXIS_all)
      fail(name, fmt::format("{} is not a sum of SIRDAR_AXIS values, 0 to {}.", value,
                             static_cast<int>(SIRDAR_AXIS_all)));
    return {(value & SIRDAR_AXIS_batch) != 0, (value & SIRDAR_AXIS_head) != 0,
            (value & SIRDAR_AXIS_query) != 0, (value & SIRDAR_AXIS_key) != 0};
  }
  static std::string text(const char* value) { return value != nullptr ? value : ""; }
  std::string name_in(std::string_view list, const char* value) {
    if (value == nullptr) fail(list, "a name is NULL; give every entry one.");
    return text(value);
  }
  // Is there a list to walk?
  template <class T>
  bool list(std::string_view name, const T* entries, size_t count) {
    if (count > kMaxListed)
      fail(name, fmt::format("{} entries are more than {}; set the count.", count, kMaxListed));
    else if (count > 0 && entries == nullptr)
      fail(name, fmt::format("{} entries are announced and the array is NULL.", count));
    return status_.ok() && count > 0;
  }
  void fail(std::string_view name, std::string_view sentence) {
    if (status_.ok()) status_ = invalid(name, sentence);
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

std::optional<int64_t> window_side(int64_t value) {
  return value == SIRDAR_UNBOUNDED ? std::nullopt : std::optional<int64_t>(value);
}

void read_sizes(const sirdar_problem& c, Reader& read, Problem& p) {
  p.op = read.enumerator<Op>("op", c.op, 2);
  p.dtype_q = read.dtype("dtype_q", c.dtype_q);
  p.dtype_kv = read.dtype("dtype_kv", c.dtype_kv);
  if (c.dtype_out != SIRDAR_DTYPE_default) p.dtype_out = read.dtype("dtype_out", c.dtype_out);
  p.batch = c.batch;
  p.seqlen_q = c.seqlen_q;
  p.seqlen_k = c.seqlen_k;
  p.total_q = c.total_q;
  p.total_k = c.total_k;
  p.num_heads_q = c.num_heads_q;
  p.num_heads_kv = c.num_heads_kv;
  p.head_dim = c.head_dim;
  p.head_dim_v = c.head_dim_v;
  p.layout_q = read.enumerator<Layout>("layout_q", c.layout_q, 3);
  p.layout_kv = read.enumerator<Layout>("layout_kv", c.layout_kv, 3);
  p.page_size = c.page_size;
  p.has_seqused_q = read.flag("has_seqused_q", c.has_seqused_q);
  p.has_seqused_k = read.flag("has_seqused_k", c.has_seqused_k);
}

void read_scores(const sirdar_problem& c, Reader& read, Problem& p) {
  p.mask.is_causal = read.flag("is_causal", c.is_causal);
  p.mask.alignment = read.enumerator<Alignment>("alignment", c.alignment, 2);
  p.mask.window_left = window_side(c.window_left);
  p.mask.window_right = window_side(c.window_right);
  p.mask.chunk_size = c.chunk_size;
  p.has_document = read.flag("has_document", c.has_document);
  p.has_mask_tensor = read.flag("has_mask", c.has_mask);
  p.mask_axes = read.axes("mask_axes", c.mask_axes);
  if (read.flag("has_softmax_scale", c.has_softmax_scale)) p.softmax_scale = c.softmax_scale;
  p.softcap = c.softcap;
  p.has_bias = read.flag("has_bias", c.has_bias);
  p.dtype_bias = read.dtype("dtype_bias", c.dtype_bias);
  p.bias_axes = read.axes("bias_axes", c.bias_axes);
  p.has_alibi = read.flag("has_alibi", c.has_alibi);
  p.has_sink = read.flag("has_sink", c.has_sink);
  p.dropout_p = c.dropout_p;
}

void read_outputs(const sirdar_problem& c, Reader& read, Problem& p) {
  p.needs_lse = read.flag("needs_lse", c.needs_lse);
  p.needs_max_logit = read.flag("needs_max_logit", c.needs_max_logit);
  p.has_dlse = read.flag("has_dlse", c.has_dlse);
  p.needs_dbias = read.flag("needs_dbias", c.needs_dbias);
  p.needs_dsink = read.flag("needs_dsink", c.needs_dsink);
  p.deterministic = read.flag("deterministic", c.deterministic);
  p.batch_invariant = read.flag("batch_invariant", c.batch_invariant);
}

void read_expressions(const sirdar_problem& c, Reader& read, Problem& p) {
  p.score_mod = Reader::text(c.score_mod);
  p.mask_mod = Reader::text(c.mask_mod);
  if (read.list("tensors", c.tensors, c.num_tensors))
    for (size_t i = 0; i < c.num_tensors; ++i) {
      const sirdar_expression_tensor& one = c.tensors[i];
      if (one.reserved != 0) read.fail("tensors.reserved", "it is set; leave it 0.");
      p.tensors.push_back({read.name_in("tensors", one.name),
                           read.dtype("tensors.dtype", one.dtype), one.rank,
                           read.flag("tensors.needs_grad", one.needs_grad)});
    }
  if (read.list("scalars", c.scalars, c.num_scalars))
    for (size_t i = 0; i < c.num_scalars; ++i)
      p.scalars.push_back(read.name_in("scalars", c.scalars[i]));
}

std::vector<NamedTensor> named_tensors(std::string_view list, const sirdar_named_tensor* entries,
                                       size_t count, Reader& read) {
  std::vector<NamedTensor> result;
  if (!read.list(list, entries, count)) return result;
  for (size_t i = 0; i < count; ++i)
    result.push_back({read.name_in(list, entries[i].name), from_c(entries[i].tensor)});
  return result;
}

int32_t axes_to_c(const Axes& axes) {
  return (axes.batch ? SIRDAR_AXIS_batch : 0) | (axes.head ? SIRDAR_AXIS_head : 0) |
         (axes.query ? SIRDAR_AXIS_query : 0) | (axes.key ? SIRDAR_AXIS_key : 0);
}

void write_scores(const Problem& p, sirdar_problem& c) {
  c.is_causal = p.mask.is_causal;
  c.alignment = static_cast<int32_t>(p.mask.alignment);
  c.window_left = p.mask.window_left.value_or(SIRDAR_UNBOUNDED);
  c.window_right = p.mask.window_right.value_or(SIRDAR_UNBOUNDED);
  c.chunk_size = p.mask.chunk_size;
  c.has_document = p.has_document;
  c.has_mask = p.has_mask_tensor;
  c.mask_axes = axes_to_c(p.mask_axes);
  c.has_softmax_scale = p.softmax_scale.has_value();
  c.softmax_scale = p.softmax_scale.value_or(0);
  c.softcap = p.softcap;
  c.has_bias = p.has_bias;
  c.dtype_bias = static_cast<int32_t>(p.dtype_bias);
  c.bias_axes = axes_to_c(p.bias_axes);
  c.has_alibi = p.has_alibi;
  c.has_sink = p.has_sink;
  c.dropout_p = p.dropout_p;
}

void write_sizes(const Problem& p, sirdar_problem& c) {
  c.op = static_cast<int32_t>(p.op);
  c.dtype_q = static_cast<int32_t>(p.dtype_q);
  c.dtype_kv = static_cast<int32_t>(p.dtype_kv);
  if (p.dtype_out) c.dtype_out = static_cast<int32_t>(*p.dtype_out);
  c.batch = p.batch;
  c.seqlen_q = p.seqlen_q;
  c.seqlen_k = p.seqlen_k;
  c.total_q = p.total_q;
  c.total_k = p.total_k;
  c.num_heads_q = p.num_heads_q;
  c.num_heads_kv = p.num_heads_kv;
  c.head_dim = p.head_dim;
  c.head_dim_v = p.head_dim_v;
  c.layout_q = static_cast<int32_t>(p.layout_q);
  c.layout_kv = static_cast<int32_t>(p.layout_kv);
  c.page_size = p.page_size;
  c.has_seqused_q = p.has_seqused_q;
  c.has_seqused_k = p.has_seqused_k;
}

}  // namespace

Status init_struct(sirdar_problem* target, size_t size) { return init(target, size); }
Status init_struct(sirdar_plan_options* target, size_t size) { return init(target, size); }
Status init_struct(sirdar_executor* target, size_t size) { return init(target, size); }
Status init_struct(sirdar_args* target, size_t size) { return init(target, size); }
Status init_struct(sirdar_merge_args* target, size_t size) { return init(target, size); }
Status init_struct(sirdar_jit_options* target, size_t size) { return init(target, size); }

TensorView from_c(const sirdar_tensor& source) {
  // A rank or dtype that no view can have is left for validation to name.
  constexpr int32_t kNoDtype = 255;
  TensorView view;
  view.data = source.data;
  view.dtype =
      static_cast<DType>(source.dtype >= 0 && source.dtype < kNoDtype ? source.dtype : kNoDtype);
  view.rank = source.rank;
  std::copy_n(source.shape, kMaxRank, view.shape.begin());
  std::copy_n(source.stride, kMaxRank, view.stride.begin());
  return view;
}

Result<Problem> from_c(const sirdar_problem* source) {
  const Result<sirdar_problem> c = adopted(source);
  if (!c.ok()) return c.status();
  Reader read;
  Problem problem;
  read_sizes(c.value(), read, problem);
  read_scores(c.value(), read, problem);
  read_outputs(c.value(), read, problem);
  read_expressions(c.value(), read, problem);
  if (!read.status().ok()) return read.status();
  return problem;
}

Result<Args> from_c(const sirdar_args* source) {
  const Result<sirdar_args> adopted_args = adopted(source);
  if (!adopted_args.ok()) return adopted_args.status();
  const sirdar_args& c = adopted_args.value();
  Args args;
  const std::pair<TensorView*, const sirdar_tensor*> tensors[] = {
      {&args.q, &c.q},
      {&args.k, &c.k},
      {&args.v, &c.v},
      {&args.out, &c.out},
      {&args.lse, &c.lse},
      {&args.max_logit, &c.max_logit},
      {&args.cu_seqlens_q, &c.cu_seqlens_q},
      {&args.cu_seqlens_k, &c.cu_seqlens_k},
      {&args.seqused_q, &c.seqused_q},
      {&args.seqused_k, &c.seqused_k},
      {&args.page_table, &c.page_table},
      {&args.document_q, &c.document_q},
      {&args.document_k, &c.document_k},
      {&args.mask, &c.mask},
      {&args.bias, &c.bias},
      {&args.alibi, &c.alibi},
      {&args.sink, &c.sink},
      {&args.dout, &c.dout},
      {&args.dlse, &c.dlse},
      {&args.dq, &c.dq},
      {&args.dk, &c.dk},
      {&args.dv, &c.dv},
      {&args.dbias, &c.dbias},
      {&args.dsink, &c.dsink},
  };
  for (const auto& [view, tensor] : tensors) *view = from_c(*tensor);
  Reader read;
  args.tensors = named_tensors("tensors", c.tensors, c.num_tensors, read);
  args.dtensors = named_tensors("dtensors", c.dtensors, c.num_dtensors, read);
  if (read.list("scalars", c.scalars, c.num_scalars))
    for (size_t i = 0; i < c.num_scalars; ++i)
      args.scalars.emplace_back(read.name_in("scalars", c.scalars[i].name), c.scalars[i].value);
  args.dropout_seed = c.dropout_seed;
  args.dropout_offset = c.dropout_offset;
  args.workspace = c.workspace;
  args.workspace_bytes = c.workspace_bytes;
  if (!read.status().ok()) return read.status();
  return args;
}

Result<MergeArgs> from_c(const sirdar_merge_args* source) {
  const Result<sirdar_merge_args> c = adopted(source);
  if (!c.ok()) return c.status();
  const sirdar_merge_args& m = c.value();
  return MergeArgs{from_c(m.out_a), from_c(m.lse_a), from_c(m.out_b),
                   from_c(m.lse_b), from_c(m.out),   from_c(m.lse)};
}

Result<CPlanOptions> from_c(const sirdar_plan_options* source) {
  CPlanOptions result;
  if (source == nullptr) return result;
  const Result<sirdar_plan_options> c = adopted(source);
  if (!c.ok()) return c.status();
  const sirdar_plan_options& o = c.value();
  Reader read;
  result.options.implementation = Reader::text(o.implementation);
  result.options.isa = Reader::text(o.isa);
  result.device = Reader::text(o.device);
  result.options.allow_reference = read.flag("allow_reference", o.allow_reference);
  result.options.num_threads = o.num_threads;
  if (read.list("knobs", o.knobs, o.num_knobs))
    for (size_t i = 0; i < o.num_knobs; ++i)
      result.options.knobs.emplace_back(read.name_in("knobs", o.knobs[i].name),
                                        Reader::text(o.knobs[i].value));
  if (o.executor != nullptr) {
    const Result<sirdar_executor> executor = adopted(o.executor);
    if (!executor.ok()) return executor.status();
    result.executor = Executor{executor.value().parallel_for, executor.value().context};
  }
  if (!read.status().ok()) return read.status();
  return result;
}

Result<JitOptions> from_c(const sirdar_jit_options* source) {
  JitOptions result;
  if (source == nullptr) return result;
  const Result<sirdar_jit_options> c = adopted(source);
  if (!c.ok()) return c.status();
  Reader read;
  result.cache_dir = Reader::text(c.value().cache_dir);
  result.kernel_dir = Reader::text(c.value().kernel_dir);
  result.dump_dir = Reader::text(c.value().dump_dir);
  result.nvrtc = Reader::text(c.value().nvrtc);
  result.may_compile = read.flag("may_compile", c.value().may_compile);
  if (c.value().reserved != 0) read.fail("reserved", "it is set; leave it 0.");
  if (!read.status().ok()) return read.status();
  return result;
}

Status to_c(const Problem& p, sirdar_problem* target) {
  if (Status status = check_size(target, target != nullptr ? target->struct_size : 0); !status.ok())
    return status;
  if (!p.score_mod.empty() || !p.mask_mod.empty() || !p.tensors.empty() || !p.scalars.empty())
    return invalid("problem",
                   "a struct cannot own the text of expressions; use "
                   "sirdar_plan_create_from_text, or set the fields to strings of yours.");
  if (target->struct_size < sizeof(sirdar_problem))
    return invalid("problem.struct_size",
                   fmt::format("{} bytes cannot hold every field of a parsed problem; {} can.",
                               target->struct_size, sizeof(sirdar_problem)));
  sirdar_problem c = defaults(target);
  c.struct_size = target->struct_size;
  write_sizes(p, c);
  write_scores(p, c);
  c.needs_lse = p.needs_lse;
  c.needs_max_logit = p.needs_max_logit;
  c.has_dlse = p.has_dlse;
  c.needs_dbias = p.needs_dbias;
  c.needs_dsink = p.needs_dsink;
  c.deterministic = p.deterministic;
  c.batch_invariant = p.batch_invariant;
  std::memset(static_cast<void*>(target), 0, c.struct_size);
  std::memcpy(static_cast<void*>(target), &c, sizeof c);
  return {};
}

}  // namespace sirdar
