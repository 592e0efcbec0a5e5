// Structured masks as one interval of visible keys per query row: lo(q) <= k < hi(q).
// Causal, window and chunk masks are intervals, and an intersection of intervals is one, so a mask
// kind is a struct with two one-line functions; everything below the structs is written once.
// Positions are relative to the sequence. Compiled by g++, clang and NVRTC: includes nothing.
#pragma once

namespace sirdar {

using Position = long long;

// Far outside any position, yet safe to add positions to.
inline constexpr Position kUnbounded = Position{1} << 60;

struct Range {
  Position begin = 0, end = 0;  // half open
  constexpr bool empty() const { return begin >= end; }
  constexpr Position size() const { return empty() ? 0 : end - begin; }
};

// How much of a tile a mask shows. `part` may be said in doubt, the other two never.
enum class Cover : unsigned char { none, part, all };

constexpr Position min_of(Position a, Position b) { return a < b ? a : b; }
constexpr Position max_of(Position a, Position b) { return a < b ? b : a; }
constexpr Position floor_div(Position a, Position b) {  // b > 0
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

// `shift` is d of docs/semantics.md: seqlen_k - seqlen_q, or 0 for top-left alignment.
struct Causal {
  Position shift = 0;
  constexpr Position lo(Position) const { return -kUnbounded; }
  constexpr Position hi(Position q) const { return q + shift + 1; }
};

struct Window {
  Position shift = 0;
  Position left = kUnbounded, right = kUnbounded;  // keys visible besides the diagonal
  constexpr Position lo(Position q) const {
    return left >= kUnbounded ? -kUnbounded : q + shift - left;
  }
  constexpr Position hi(Position q) const {
    return right >= kUnbounded ? kUnbounded : q + shift + right + 1;
  }
};

struct Chunk {
  Position shift = 0;
  Position size = 1;
  constexpr Position lo(Position q) const { return floor_div(q + shift, size) * size; }
  constexpr Position hi(Position q) const { return lo(q) + size; }
};

// The keys that exist.
struct Length {
  Position seqlen_k = 0;
  constexpr Position lo(Position) const { return 0; }
  constexpr Position hi(Position) const { return seqlen_k; }
};

template <class A, class B>
struct Both {
  A a;
  B b;
  constexpr Position lo(Position q) const { return max_of(a.lo(q), b.lo(q)); }
  constexpr Position hi(Position q) const { return min_of(a.hi(q), b.hi(q)); }
};

// Every structured mask of a Problem at once, for code that chooses at run time.
struct StructuredMask {
  Length length;
  bool is_causal = false, has_window = false, has_chunk = false;
  Causal causal;
  Window window;
  Chunk chunk;

  constexpr Position lo(Position q) const {
    Position bound = length.lo(q);
    if (has_window) bound = max_of(bound, window.lo(q));
    if (has_chunk) bound = max_of(bound, chunk.lo(q));
    return bound;
  }
  constexpr Position hi(Position q) const {
    Position bound = length.hi(q);
    if (is_causal) bound = min_of(bound, causal.hi(q));
    if (has_window) bound = min_of(bound, window.hi(q));
    if (has_chunk) bound = min_of(bound, chunk.hi(q));
    return bound;
  }
};

template <class M>
constexpr bool allows(const M& mask, Position q, Position k) {
  return mask.lo(q) <= k && k < mask.hi(q);
}

// The keys of one row, possibly empty.
template <class M>
constexpr Range key_range(const M& mask, Position q) {
  return {mask.lo(q), max_of(mask.lo(q), mask.hi(q))};
}

// Keys that some row of `q` may see: what is worth loading. lo and hi must never decrease in q.
template <class M>
constexpr Range key_range(const M& mask, Range q) {
  if (q.empty()) return {};
  const Position begin = mask.lo(q.begin), end = mask.hi(q.end - 1);
  return {begin, max_of(begin, end)};
}

// The other way round: the query rows that see key k >= 0, which are an interval too.
constexpr Range query_range(const StructuredMask& mask, Position k, Position seqlen_q) {
  Range rows = {0, k < mask.length.seqlen_k ? seqlen_q : 0};
  if (mask.is_causal) rows.begin = max_of(rows.begin, k - mask.causal.shift);
  if (mask.has_window) {
    const Position diagonal = k - mask.window.shift;
    rows.begin = max_of(rows.begin, diagonal - mask.window.right);
    rows.end = min_of(rows.end, diagonal + mask.window.left + 1);
  }
  if (mask.has_chunk) {
    const Position first = k / mask.chunk.size * mask.chunk.size - mask.chunk.shift;
    rows.begin = max_of(rows.begin, first);
    rows.end = min_of(rows.end, first + mask.chunk.size);
  }
  return {rows.begin, max_of(rows.begin, rows.end)};
}

template <class M>
constexpr Cover coverage(const M& mask, Range q, Range k) {
  if (q.empty() || k.empty()) return Cover::none;
  const Range seen = key_range(mask, q);
  if (seen.empty() || k.end <= seen.begin || seen.end <= k.begin) return Cover::none;
  const bool all = mask.lo(q.end - 1) <= k.begin && k.end <= mask.hi(q.begin);
  return all ? Cover::all : Cover::part;
}

}  // namespace sirdar
