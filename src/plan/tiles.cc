#include "plan/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/geometry.h"
#include "expression/ast.h"

namespace sirdar {
namespace {

// Both masks must allow a pair.
Cover both(Cover a, Cover b) {
  if (a == Cover::none || b == Cover::none) return Cover::none;
  return a == Cover::all && b == Cover::all ? Cover::all : Cover::part;
}

// Whether the text means the same in every sequence and head that may be meant.
bool is_alike_everywhere(const expression::Program& program, const Problem& problem,
                         const ExpressionData& data) {
  return std::ranges::none_of(program.tree().nodes, [&](const expression::Node& node) {
    return (node.op == expression::Op::b && problem.batch > 1 && !data.b) ||
           (node.op == expression::Op::h && problem.num_heads_q > 1 && !data.h);
  });
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Structured masks alone: a row of tiles at a time, from the interval of keys that it sees.
TileCounts count_structured(const Problem& p, int64_t block_m, int64_t block_n) {
  const int64_t rows = ceil_div(p.seqlen_q, block_m), columns = ceil_div(p.seqlen_k, block_n);
  const StructuredMask mask = structured_mask(p.mask, p.seqlen_q, p.seqlen_k);
  TileCounts counts;
  for (int64_t row = 0; row < rows; ++row) {
    const Range q{row * block_m, std::min(p.seqlen_q, (row + 1) * block_m)};
    const Range seen = key_range(mask, q);
    const Range first = key_range(mask, q.begin), last = key_range(mask, q.end - 1);
    const int64_t begin = seen.empty() ? 0 : seen.begin / block_n;
    const int64_t end = seen.empty() ? 0 : ceil_div(seen.end, block_n);
    // Keys that every row sees; the last tile may end with the keys themselves.
    const int64_t all_begin = ceil_div(last.begin, block_n);
    const int64_t all_end = first.end == p.seqlen_k ? columns : first.end / block_n;
    const bool none_empty = !first.empty() && !last.empty();
    const int64_t all = none_empty ? std::max<int64_t>(0, all_end - all_begin) : 0;
    counts.all += all;
    counts.part += end - begin - all;
    counts.none += columns - (end - begin);
  }
  return counts;
}

TileCounts count_one_by_one(const Problem& p, const KnownMasks& masks, int64_t block_m,
                            int64_t block_n) {
  TileCounts counts;
  for (int64_t i = 0; i < p.seqlen_q; i += block_m) {
    for (int64_t j = 0; j < p.seqlen_k; j += block_n) {
      const Cover cover = masks.coverage({i, std::min(p.seqlen_q, i + block_m)},
                                         {j, std::min(p.seqlen_k, j + block_n)});
      ++(cover == Cover::all ? counts.all : cover == Cover::part ? counts.part : counts.none);
    }
  }
  return counts;
}

}  // namespace

std::vector<std::string> masks_of_data(const Problem& problem) {
  std::vector<std::string> masks;
  if (problem.has_document) masks.emplace_back("document ids");
  if (problem.has_mask_tensor) masks.emplace_back("the mask tensor");
  if (problem.has_bias) masks.emplace_back("where the bias is -inf");
  return masks;
}

std::optional<KnownExpression> KnownExpression::of(expression::Kind kind, const Problem& problem,
                                                   const ExpressionData& data,
                                                   std::vector<std::string>& unknown) {
  const bool is_mask = kind == expression::Kind::mask_mod;
  const std::string& text = is_mask ? problem.mask_mod : problem.score_mod;
  if (text.empty()) return std::nullopt;
  const auto program = expression::Program::parse(kind, text, problem.tensors, problem.scalars);
  if (!program.ok()) return std::nullopt;  // a valid problem's can be parsed
  const std::string what = fmt::format("the {}, which ", expression::name_of(kind));
  if (!is_alike_everywhere(program.value(), problem, data)) {
    unknown.push_back(what + "differs between sequences or heads");
    return std::nullopt;
  }
  KnownExpression result(program.value());
  if (result.bind(problem, data)) return result;
  unknown.push_back(what + "reads tensors or scalars");
  return std::nullopt;
}

bool KnownExpression::bind(const Problem& problem, const ExpressionData& data) {
  b_ = data.b.value_or(0);
  h_ = data.h.value_or(0);
  shift_ = problem.seqlen_k - problem.seqlen_q;
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const auto given = std::ranges::find(data.tensors, problem.tensors[t].name, &NamedTensor::name);
    if (given == data.tensors.end() && program_.reads_tensor(t)) return false;
    tensors_.push_back(given == data.tensors.end() ? TensorView{} : given->view);
  }
  for (size_t s = 0; s < problem.scalars.size(); ++s) {
    const auto given = std::ranges::find(data.scalars, problem.scalars[s],
                                         [](const auto& scalar) { return scalar.first; });
    if (given == data.scalars.end() && program_.reads_scalar(s)) return false;
    scalars_.push_back(given == data.scalars.end() ? 0 : given->second);
  }
  return true;
}

Cover KnownExpression::coverage(Range q, Range k) const {
  return program_.coverage({tensors_, scalars_},
                           {.b = b_, .h = h_, .q = q, .k = k, .shift = shift_});
}

double KnownExpression::value(double score, Position q, Position k) const {
  return program_.value({tensors_, scalars_}, {score, b_, h_, q, k, q + shift_});
}

KnownMasks::KnownMasks(const Problem& problem, const ExpressionData& data)
    : structured_(structured_mask(problem.mask, problem.seqlen_q, problem.seqlen_k)),
      unknown_(masks_of_data(problem)),
      mask_mod_(KnownExpression::of(expression::Kind::mask_mod, problem, data, unknown_)) {}

Cover KnownMasks::coverage(Range q, Range k) const {
  Cover cover = sirdar::coverage(structured_, q, k);
  if (cover != Cover::none && mask_mod_) cover = both(cover, mask_mod_->coverage(q, k));
  return cover == Cover::all && !unknown_.empty() ? Cover::part : cover;
}

TileSize tile_size(std::string_view config) {
  TileSize size;
  int64_t heads = 1;
  for (const auto& [name, target] :
       {std::pair{"block_m=", &size.block_m}, std::pair{"block_n=", &size.block_n},
        std::pair{"num_packed_heads=", &heads}}) {
    const size_t at = config.find(name);
    if (at == std::string_view::npos) continue;
    const std::string_view text = config.substr(at + std::string_view(name).size());
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    if (value > 0) *target = value;
  }
  size.block_m = std::max<int64_t>(size.block_m / heads, 1);
  return size;
}

std::optional<TileCounts> count_tiles(const Problem& p, int64_t block_m, int64_t block_n) {
  constexpr int64_t kMaxRows = 1 << 20, kMaxTiles = 1 << 18;
  if (block_m < 1 || block_n < 1) return std::nullopt;
  const int64_t rows = ceil_div(p.seqlen_q, block_m), columns = ceil_div(p.seqlen_k, block_n);
  if (rows > kMaxRows) return std::nullopt;
  const KnownMasks masks(p);
  if (masks.has_mask_mod() && columns > 0 && rows > kMaxTiles / columns) return std::nullopt;
  TileCounts counts = masks.has_mask_mod() ? count_one_by_one(p, masks, block_m, block_n)
                                           : count_structured(p, block_m, block_n);
  counts.unknown = masks.unknown();
  if (!counts.unknown.empty()) {
    counts.part += counts.all;
    counts.all = 0;
  }
  return counts;
}

}  // namespace sirdar
