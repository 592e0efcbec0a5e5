#include "attend_inputs.h"

#include "parse.h"
#include "shared/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sirdar::cli {
namespace {

class Builder {
 public:
  explicit Builder(const AttendFlags& flags) : flags_(flags), problem_(inputs_.forward) {}

  Result<AttendInputs> build() {
    using Step = Status (Builder::*)();
    constexpr Step kSteps[] = {
        &Builder::choose_form,      &Builder::read_qkv,     &Builder::read_queries,
        &Builder::read_keys,        &Builder::read_seqused, &Builder::set_masks,
        &Builder::read_masks,       &Builder::set_scores,   &Builder::read_scores,
        &Builder::read_expressions, &Builder::read_backward};
    for (const Step step : kSteps) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return std::move(inputs_);
  }

 private:
  using Text = AttendFlags::Text;

  Status choose_form() {
    const std::string layout = flags_.layout.value_or("bshd");
    if (layout != "bshd" && layout != "bhsd") {
      return bad_flag("--layout", fmt::format("'{}' is not known; use bshd or bhsd.", layout));
    }
    inputs_.is_bhsd = layout == "bhsd";
    if (flags_.dtype) {
      const Result<DType> dtype = parse_dtype(*flags_.dtype);
      if (!dtype.ok() || !row_of(dtype.value()).is_float() || dtype.value() == DType::fp8_e5m2) {
        return bad_flag("--dtype", fmt::format("'{}' is not a type to compute in; use fp32, bf16, "
                                               "fp16 or fp8_e4m3.",
                                               *flags_.dtype));
      }
      inputs_.tensors.round_to(dtype.value());
    }
    for (const auto& [flag, file] :
         {std::pair{"--q", &flags_.q}, std::pair{"--k", &flags_.k}, std::pair{"--v", &flags_.v}}) {
      if (!*file) return bad_flag(flag, "is missing; attend needs --q F, --k F and --v F.");
    }
    return {};
  }

  // Files may have heads before positions; Sirdar has positions first.
  TensorView positions_first(const TensorView& view) const {
    return inputs_.is_bhsd ? view.transposed(view.rank - 3, view.rank - 2) : view;
  }

  Status read_qkv() {
    for (const auto& [flag, file, view] : {std::tuple{"--q", &flags_.q, &inputs_.args.q},
                                           {"--k", &flags_.k, &inputs_.args.k},
                                           {"--v", &flags_.v, &inputs_.args.v}}) {
      if (Status status = read(flag, **file, Role::data, {3, 4}, *view); !status.ok()) {
        return status;
      }
      *view = positions_first(*view);
    }
    if (inputs_.args.v.rank != inputs_.args.k.rank) {
      return bad_flag("--v", fmt::format("has {} axes where --k has {}; they must be alike.",
                                         inputs_.args.v.rank, inputs_.args.k.rank));
    }
    problem_.dtype_q = inputs_.args.q.dtype;
    problem_.dtype_kv = inputs_.args.k.dtype;
    return {};
  }

  // A side that has cu_seqlens has 3 axes, one that has none 4. Reads the longest sequence.
  Status read_ragged(std::string_view side, const Text& file, int rank, TensorView& cu_seqlens,
                     int64_t& longest) {
    const std::string flag = fmt::format("--cu-seqlens-{}", side);
    if (!file) {
      return bad_flag(
          fmt::format("--{}", side),
          fmt::format("has 3 axes, [total, heads, dim], and no {}; give it, or 4 axes.", flag));
    }
    if (rank == 4) {
      return bad_flag(
          flag, fmt::format("--{} has 4 axes; a ragged one has 3, [total, heads, dim].", side));
    }
    if (Status status = read(flag, *file, Role::index, {1}, cu_seqlens); !status.ok()) {
      return status;
    }
    if (cu_seqlens.shape[0] < 1) {
      return bad_flag(flag, "is empty; it needs batch + 1 numbers, the first 0.");
    }
    const auto* sums = static_cast<const int32_t*>(cu_seqlens.data);
    longest = 0;
    for (int64_t b = 0; b + 1 < cu_seqlens.shape[0]; ++b) {
      longest = std::max(longest, int64_t{sums[b + 1]} - sums[b]);
    }
    return {};
  }

  Status read_queries() {
    const TensorView& q = inputs_.args.q;
    problem_.num_heads_q = q.shape[static_cast<size_t>(q.rank) - 2];
    problem_.head_dim = q.shape[static_cast<size_t>(q.rank) - 1];
    if (q.rank == 4 && !flags_.cu_seqlens_q) {
      problem_.batch = q.shape[0];
      problem_.seqlen_q = q.shape[1];
      return {};
    }
    TensorView& cu_seqlens = inputs_.args.cu_seqlens_q;
    if (Status status =
            read_ragged("q", flags_.cu_seqlens_q, q.rank, cu_seqlens, problem_.seqlen_q);
        !status.ok()) {
      return status;
    }
    problem_.layout_q = Layout::ragged;
    problem_.batch = cu_seqlens.shape[0] - 1;
    problem_.total_q = q.shape[0];
    return {};
  }

  Status read_keys() {
    const TensorView& k = inputs_.args.k;
    problem_.num_heads_kv = k.shape[static_cast<size_t>(k.rank) - 2];
    problem_.head_dim_v = inputs_.args.v.shape[static_cast<size_t>(k.rank) - 1];
    if (flags_.page_table) return read_pages();
    if (k.rank == 4 && !flags_.cu_seqlens_k) {
      problem_.seqlen_k = k.shape[1];
      return {};
    }
    problem_.layout_kv = Layout::ragged;
    problem_.total_k = k.shape[0];
    return read_ragged("k", flags_.cu_seqlens_k, k.rank, inputs_.args.cu_seqlens_k,
                       problem_.seqlen_k);
  }

  Status read_pages() {
    const TensorView& k = inputs_.args.k;
    if (flags_.cu_seqlens_k) {
      return bad_flag("--page-table", "cannot go with --cu-seqlens-k; give --seqused-k instead.");
    }
    if (!flags_.seqused_k) {
      return bad_flag("--page-table", "needs --seqused-k, the number of keys of each sequence.");
    }
    if (k.rank != 4) {
      return bad_flag("--k",
                      "has 3 axes; with --page-table it needs 4, [num_pages, page_size, "
                      "heads, dim].");
    }
    TensorView& table = inputs_.args.page_table;
    if (Status status = read("--page-table", *flags_.page_table, Role::index, {2}, table);
        !status.ok()) {
      return status;
    }
    problem_.layout_kv = Layout::paged;
    problem_.page_size = k.shape[1];
    // What the table has room for, as a dense tensor's seqlen_k is what it has room for.
    if (__builtin_mul_overflow(table.shape[1], problem_.page_size, &problem_.seqlen_k)) {
      return bad_flag("--page-table", "holds more keys than 64 bits can count; use fewer pages.");
    }
    return {};
  }

  Status read_seqused() {
    problem_.has_seqused_q = flags_.seqused_q.has_value();
    problem_.has_seqused_k = flags_.seqused_k.has_value();
    if (Status status =
            read_if("--seqused-q", flags_.seqused_q, Role::index, {1}, inputs_.args.seqused_q);
        !status.ok()) {
      return status;
    }
    return read_if("--seqused-k", flags_.seqused_k, Role::index, {1}, inputs_.args.seqused_k);
  }

  Status read(std::string_view flag, const std::string& file, Role role,
              std::initializer_list<int> ranks, TensorView& view) {
    return inputs_.tensors.read(flag, file, role, ranks, view);
  }

  Status read_if(std::string_view flag, const Text& file, Role role,
                 std::initializer_list<int> ranks, TensorView& view) {
    return file ? read(flag, *file, role, ranks, view) : Status();
  }

  Status set_masks();
  Status set_window();
  Status read_masks();
  Status read_documents();
  Status set_scores();
  Status set_dropout();
  Status read_scores();
  Status read_expressions();
  Status check_backward() const;
  Status read_backward();

  // [seqlen_q, seqlen_k] becomes [1, 1, seqlen_q, seqlen_k].
  static void pad_to_rank_4(TensorView& view) {
    if (view.rank == 4) return;
    view = TensorView{view.data,
                      view.dtype,
                      4,
                      {1, 1, view.shape[0], view.shape[1]},
                      {0, 0, view.stride[0], view.stride[1]}};
  }

  // An axis of size 1 is broadcast unless the problem has but one there.
  Axes axes_of(const TensorView& view) const {
    const auto has = [&](size_t axis, int64_t size) { return view.shape[axis] != 1 || size == 1; };
    return {has(0, problem_.batch), has(1, problem_.num_heads_q), has(2, problem_.seqlen_q),
            has(3, problem_.seqlen_k)};
  }

  const AttendFlags& flags_;
  AttendInputs inputs_;
  Problem& problem_;
};

Status Builder::set_masks() {
  Mask& mask = problem_.mask;
  if (flags_.causal) {
    if (*flags_.causal != "bottom-right" && *flags_.causal != "top-left") {
      return bad_flag("--causal", fmt::format("'{}' is not an alignment; use --causal or "
                                              "--causal=top-left.",
                                              *flags_.causal));
    }
    mask.is_causal = true;
    if (*flags_.causal == "top-left") mask.alignment = Alignment::top_left;
  }
  if (flags_.chunk) {
    const Result<int64_t> size = parse_integer("--chunk", *flags_.chunk, 1);
    if (!size.ok()) return size.status();
    mask.chunk_size = size.value();
  }
  return flags_.window ? set_window() : Status();
}

Status Builder::set_window() {
  const std::string& text = *flags_.window;
  const size_t comma = text.find(',');
  if (comma == std::string::npos || text.size() == 1) {
    return bad_flag("--window", fmt::format("'{}' is not LEFT,RIGHT; give two whole numbers, or "
                                            "leave one of them out for unbounded.",
                                            text));
  }
  const auto side = [](const std::string& word, std::optional<int64_t>& target) -> Status {
    if (word.empty()) return {};
    const Result<int64_t> value = parse_integer("--window", word, 0);
    if (!value.ok()) {
      return bad_flag("--window", fmt::format("'{}' is not a side; give a whole number, 0 or more, "
                                              "or leave it out for unbounded.",
                                              word));
    }
    target = value.value();
    return {};
  };
  if (Status status = side(text.substr(0, comma), problem_.mask.window_left); !status.ok()) {
    return status;
  }
  return side(text.substr(comma + 1), problem_.mask.window_right);
}

Status Builder::read_masks() {
  if (flags_.mask) {
    TensorView& mask = inputs_.args.mask;
    if (Status status = read("--mask", *flags_.mask, Role::boolean, {2, 4}, mask); !status.ok()) {
      return status;
    }
    pad_to_rank_4(mask);
    problem_.has_mask_tensor = true;
    problem_.mask_axes = axes_of(mask);
  }
  problem_.mask_mod = flags_.mask_mod.value_or("");
  if (flags_.mask_mod && flags_.mask_mod->empty()) {
    return bad_flag("--mask-mod", "is empty; write an expression, or leave the flag out.");
  }
  return flags_.document_q || flags_.document_k ? read_documents() : Status();
}

Status Builder::read_documents() {
  if (!flags_.document_q || !flags_.document_k) {
    return bad_flag(flags_.document_q ? "--document-k" : "--document-q",
                    "is missing; document ids are needed for queries and keys.");
  }
  problem_.has_document = true;
  for (const auto& [flag, file, view] :
       {std::tuple{"--document-q", &flags_.document_q, &inputs_.args.document_q},
        {"--document-k", &flags_.document_k, &inputs_.args.document_k}}) {
    if (Status status = read(flag, **file, Role::index, {1, 2}, *view); !status.ok()) return status;
    if (view->rank == 1) {
      *view = TensorView{view->data, view->dtype, 2, {1, view->shape[0]}, {0, view->stride[0]}};
    }
  }
  return {};
}

Status Builder::set_scores() {
  if (flags_.scale) {
    const Result<float> scale = parse_float("--scale", *flags_.scale);
    if (!scale.ok()) return scale.status();
    problem_.softmax_scale = scale.value();
  }
  if (flags_.softcap) {
    const Result<float> softcap = parse_float("--softcap", *flags_.softcap);
    if (!softcap.ok()) return softcap.status();
    if (!(softcap.value() > 0) || std::isinf(softcap.value())) {
      return bad_flag("--softcap", fmt::format("{} is not allowed; give a number above 0, or leave "
                                               "the flag out.",
                                               *flags_.softcap));
    }
    problem_.softcap = softcap.value();
  }
  problem_.score_mod = flags_.score_mod.value_or("");
  if (flags_.score_mod && flags_.score_mod->empty()) {
    return bad_flag("--score-mod", "is empty; write an expression, or leave the flag out.");
  }
  return flags_.dropout ? set_dropout() : Status();
}

Status Builder::set_dropout() {
  const std::string& text = *flags_.dropout;
  const size_t first = text.find(','), second = text.find(',', first + 1);
  if (first == std::string::npos || second == std::string::npos) {
    return bad_flag(
        "--dropout",
        fmt::format("'{}' is not P,SEED,OFFSET; write all three, like 0.1,42,0.", text));
  }
  const Result<float> p = parse_float("--dropout", text.substr(0, first));
  if (!p.ok() || !(p.value() > 0 && p.value() < 1)) {
    return bad_flag("--dropout", fmt::format("P is '{}'; give a number above 0 and below 1, or "
                                             "leave the flag out for no dropout.",
                                             text.substr(0, first)));
  }
  const Result<uint64_t> seed =
      parse_unsigned("--dropout", text.substr(first + 1, second - first - 1), "SEED");
  if (!seed.ok()) return seed.status();
  const Result<uint64_t> offset = parse_unsigned("--dropout", text.substr(second + 1), "OFFSET");
  if (!offset.ok()) return offset.status();
  problem_.dropout_p = p.value();
  inputs_.args.dropout_seed = seed.value();
  inputs_.args.dropout_offset = offset.value();
  return {};
}

Status Builder::read_scores() {
  Args& args = inputs_.args;
  problem_.has_alibi = flags_.alibi.has_value();
  problem_.has_sink = flags_.sink.has_value();
  if (Status status = read_if("--alibi", flags_.alibi, Role::number, {1, 2}, args.alibi);
      !status.ok()) {
    return status;
  }
  if (Status status = read_if("--sink", flags_.sink, Role::number, {1}, args.sink); !status.ok()) {
    return status;
  }
  if (!flags_.bias) return {};
  if (Status status = read("--bias", *flags_.bias, Role::bias, {2, 4}, args.bias); !status.ok()) {
    return status;
  }
  inputs_.bias_rank = args.bias.rank;
  pad_to_rank_4(args.bias);
  problem_.has_bias = true;
  problem_.dtype_bias = args.bias.dtype;
  problem_.bias_axes = axes_of(args.bias);
  return {};
}

Status Builder::read_expressions() {
  if ((!flags_.tensor.empty() || !flags_.scalar.empty()) && !flags_.score_mod && !flags_.mask_mod) {
    return bad_flag(flags_.tensor.empty() ? "--scalar" : "--tensor",
                    "nothing reads it; give --score-mod or --mask-mod too.");
  }
  for (const std::string& text : flags_.tensor) {
    const auto assignment = parse_assignment("--tensor", text, "F");
    if (!assignment.ok()) return assignment.status();
    const auto& [name, file] = assignment.value();
    TensorView view;
    if (Status status = read("--tensor", file, Role::expression, {1, 2, 3, 4}, view);
        !status.ok()) {
      return status;
    }
    problem_.tensors.push_back({name, view.dtype, view.rank, false});
    inputs_.args.tensors.push_back({name, view});
  }
  for (const std::string& text : flags_.scalar) {
    const auto assignment = parse_assignment("--scalar", text, "X");
    if (!assignment.ok()) return assignment.status();
    const auto& [name, number] = assignment.value();
    const Result<double> value = parse_double("--scalar", number);
    if (!value.ok()) return value.status();
    // Expressions compute in fp32, where a number this large would become infinity.
    if (std::isfinite(value.value()) && std::isinf(static_cast<float>(value.value()))) {
      return bad_flag("--scalar", fmt::format("'{}' is more than fp32 can hold; write inf for "
                                              "infinity.",
                                              number));
    }
    problem_.scalars.push_back(name);
    inputs_.args.scalars.emplace_back(name, value.value());
  }
  return {};
}

// What backward flags need, said in flags before a tensor is read for them.
Status Builder::check_backward() const {
  const std::pair<const char*, bool> gradients[] = {
      {"--dlse", flags_.dlse.has_value()},   {"--dq", flags_.dq.has_value()},
      {"--dk", flags_.dk.has_value()},       {"--dv", flags_.dv.has_value()},
      {"--dbias", flags_.dbias.has_value()}, {"--dsink", flags_.dsink.has_value()},
      {"--dtensor", !flags_.dtensor.empty()}};
  for (const auto& [flag, is_given] : gradients) {
    if (is_given && !flags_.dout) {
      return bad_flag(flag, "needs --dout F, the gradient of the result.");
    }
  }
  if (flags_.dbias && !flags_.bias) {
    return bad_flag("--dbias", "there is no bias to differentiate; give --bias F too.");
  }
  if (flags_.dsink && !flags_.sink) {
    return bad_flag("--dsink", "there is no sink to differentiate; give --sink F too.");
  }
  if (flags_.dout && flags_.page_table) {
    return bad_flag("--dout",
                    "paged keys have no backward pass; gather them into a tensor of "
                    "[batch, seqlen_k, heads, dim] and leave --page-table out.");
  }
  if (flags_.dout && size_bytes(problem_.dtype_q) == 1) {
    return bad_flag("--dout", fmt::format("{} has no backward pass; use --dtype bf16.",
                                          name_of(problem_.dtype_q)));
  }
  return {};
}

Status Builder::read_backward() {
  if (Status status = check_backward(); !status.ok()) return status;
  problem_.needs_lse = flags_.lse.has_value() || flags_.dout.has_value();
  problem_.needs_max_logit = flags_.max_logit.has_value();
  if (!flags_.dout) return {};

  inputs_.backward = problem_;
  Problem& backward = *inputs_.backward;
  backward.op = Op::backward;
  backward.needs_lse = backward.needs_max_logit = false;
  backward.has_dlse = flags_.dlse.has_value();
  backward.needs_dbias = flags_.dbias.has_value();
  backward.needs_dsink = flags_.dsink.has_value();
  for (const std::string& text : flags_.dtensor) {
    const auto assignment = parse_assignment("--dtensor", text, "F");
    if (!assignment.ok()) return assignment.status();
    const auto tensor =
        std::ranges::find(backward.tensors, assignment.value().first, &ExpressionTensor::name);
    if (tensor == backward.tensors.end()) {
      return bad_flag("--dtensor",
                      fmt::format("'{}' is not a tensor; name one that --tensor gives.",
                                  assignment.value().first));
    }
    if (tensor->dtype != DType::fp32) {
      return bad_flag("--dtensor", fmt::format("'{}' is {} and has no gradient; give --tensor a "
                                               "float32 file, or leave --dtensor out.",
                                               tensor->name, name_of(tensor->dtype)));
    }
    tensor->needs_grad = true;
  }
  // dout is rounded to the type of the result, as the result itself is.
  if (inputs_.tensors.rounds()) inputs_.tensors.round_to(problem_.output_dtype());
  Args& args = inputs_.args;
  if (Status status = read("--dout", *flags_.dout, Role::data, {args.q.rank}, args.dout);
      !status.ok()) {
    return status;
  }
  args.dout = positions_first(args.dout);
  return read_if("--dlse", flags_.dlse, Role::number, {args.q.rank - 1}, args.dlse);
}

}  // namespace

Result<AttendInputs> read_attend_inputs(const AttendFlags& flags) { return Builder(flags).build(); }

}  // namespace sirdar::cli
