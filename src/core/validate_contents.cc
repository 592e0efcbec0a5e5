#include "core/validate_contents.h"

#include <fmt/format.h>

#include "core/geometry.h"
#include "core/rules.h"

namespace sirdar {
namespace {

// One side of the problem: its sizes and how messages call its arrays.
struct Side {
  std::string_view letter;
  int64_t seqlen, total;
  Extents extents;
  bool is_paged;
  int64_t page_room;  // keys that the page table has room for
};

Status check_cu_seqlens(const Side& side, int64_t batch) {
  const IntArray& ends = side.extents.cu_seqlens;
  if (!ends.present()) return {};
  const std::string name = fmt::format("cu_seqlens_{}", side.letter);
  if (ends.at(0) != 0)
    return broken("V053", name,
                  fmt::format("{}[0] = {}; prefix sums must start at 0.", name, ends.at(0)));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = ends.at(b), end = ends.at(b + 1);
    if (end < begin)
      return broken("V054", name,
                    fmt::format("{}[{}] = {} is less than {}[{}] = {}; prefix sums must not "
                                "decrease.",
                                name, b + 1, end, name, b, begin));
    if (end - begin > side.seqlen)
      return broken(
          "V056", name,
          fmt::format("{}[{}] - {}[{}] = {} is more than seqlen_{} = {}; seqlen_{} must be "
                      "the longest length.",
                      name, b + 1, name, b, end - begin, side.letter, side.seqlen, side.letter));
  }
  if (ends.at(batch) != side.total)
    return broken("V055", name,
                  fmt::format("{}[{}] = {} is not total_{} = {}; prefix sums must end there.", name,
                              batch, ends.at(batch), side.letter, side.total));
  return {};
}

Status check_seqused(const Side& side, int64_t batch) {
  const IntArray& used = side.extents.seqused;
  if (!used.present()) return {};
  const std::string name = fmt::format("seqused_{}", side.letter);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = used.at(b), most = side.extents.sequence(b).stored;
    if (length < 0 || length > most)
      return broken("V057", name,
                    fmt::format("{}[{}] = {} is not from 0 to {}, the length of that sequence.",
                                name, b, length, most));
    if (side.is_paged && length > side.page_room)
      return broken(
          "V058", "page_table",
          fmt::format("it has room for {} keys of a sequence and {}[{}] = {}; give it more "
                      "pages.",
                      side.page_room, name, b, length));
  }
  return {};
}

Status check_pages(const Problem& p, const Args& args) {
  const int64_t num_pages = args.k.shape[0];
  const IntArray used = int_array(args.seqused_k);
  const int64_t stride_batch = stride_or_zero(args.page_table, 0);
  const int64_t stride_page = stride_or_zero(args.page_table, 1);
  const auto* table = static_cast<const int32_t*>(args.page_table.data);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t pages = (used.at(b) + p.page_size - 1) / p.page_size;
    for (int64_t i = 0; i < pages; ++i) {
      const int64_t page = table[b * stride_batch + i * stride_page];
      if (page < 0 || page >= num_pages)
        return broken("V059", "page_table",
                      fmt::format("page_table[{}, {}] = {} is not a page; pages are from 0 to {}.",
                                  b, i, page, num_pages - 1));
    }
  }
  return {};
}

}  // namespace

Status validate_contents(const Problem& p, const Args& args) {
  const bool is_paged = p.layout_kv == Layout::paged;
  // The product may exceed 64 bits for a table that is all one entry behind a zero stride.
  int64_t room = 0;
  if (is_paged && __builtin_mul_overflow(args.page_table.shape[1], p.page_size, &room))
    room = INT64_MAX;
  const Side sides[] = {{"q", p.seqlen_q, p.total_q, query_extents(p, args), false, 0},
                        {"k", p.seqlen_k, p.total_k, key_extents(p, args), is_paged, room}};
  for (const Side& side : sides) {
    if (Status status = check_cu_seqlens(side, p.batch); !status.ok()) return status;
    if (p.batch == 0) continue;
    if (Status status = check_seqused(side, p.batch); !status.ok()) return status;
  }
  return is_paged && p.batch > 0 ? check_pages(p, args) : Status();
}

}  // namespace sirdar
