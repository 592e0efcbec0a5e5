// Where a part of the keys leaves what it knows of a row, for combine.cuh to add.
#pragma once

#include "cuda/sm90/forward/work.cuh"
#include "ptx/memory.cuh"

namespace sirdar::sm90 {

struct alignas(16) FourFloats {
  float a[4];
};
struct alignas(8) TwoFloats {
  float a[2];
};

// Of a query row in this part of its keys: what its weights are relative to, and their sum.
struct PartEnd {
  float reference, sum;
};

SIRDAR_DEVICE long long index_of(const PartsView& parts, const WorkItem& item, QueryRow of) {
  return item.batch * parts.stride_batch +
         (item.q_begin + of.row) * static_cast<long long>(parts.num_heads) + of.head;
}

// The row's results in the item's part; they begin at a multiple of 16 bytes.
template <ForwardConfig config>
SIRDAR_DEVICE float* part_results(const PartsView& parts, const WorkItem& item, QueryRow of) {
  return parts.results +
         (item.split * parts.stride_split + index_of(parts, item, of)) * config.head_dim_v;
}
SIRDAR_DEVICE TwoFloats* part_end(const PartsView& parts, const WorkItem& item, QueryRow of) {
  return reinterpret_cast<TwoFloats*>(parts.ends) + item.split * parts.stride_split +
         index_of(parts, item, of);
}

SIRDAR_DEVICE void write_end(const PartsView& parts, const WorkItem& item, QueryRow of,
                             PartEnd end) {
  ptx::store_global(part_end(parts, item, of), {end.reference, end.sum});
}
SIRDAR_DEVICE PartEnd read_end(const PartsView& parts, const WorkItem& item, QueryRow of) {
  const TwoFloats end = ptx::load_global(part_end(parts, item, of));
  return {end.a[0], end.a[1]};
}

}  // namespace sirdar::sm90
