#include "core/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace sirdar {
namespace {

// Words are short; a long unknown word is not a misspelling of one.
constexpr size_t kMaxLength = 40;

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  if (word.empty() || word.size() > kMaxLength) return {};
  std::string_view best;
  size_t best_distance = 3;  // two slips at most
  for (const std::string_view candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < std::max(word.size(), candidate.size()) / 2 + 1) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view best = nearest(word, known);
  return best.empty() ? std::string() : fmt::format("; did you mean '{}'?", best);
}

std::string shortened(std::string_view word) {
  constexpr size_t kShown = 80, kEnd = 37;
  if (word.size() <= kShown) return std::string(word);
  // Characters of several bytes stay whole.
  const auto continues = [&](size_t i) {
    return (static_cast<unsigned char>(word[i]) & 0xc0) == 0x80;
  };
  size_t first = kEnd, last = word.size() - kEnd;
  while (first > kEnd - 4 && continues(first)) --first;
  while (last < word.size() - kEnd + 4 && continues(last)) ++last;
  return fmt::format("{} ... {}", word.substr(0, first), word.substr(last));
}

std::string suggestion_or_stop(std::string_view word, std::span<const std::string_view> known) {
  const std::string hint = suggestion(word, known);
  return hint.empty() ? "." : hint;
}

}  // namespace sirdar
