// One forward call: the problem, the caller's memory as plain structs, and how the work is cut.
#pragma once

#include <sirdar/plan.hpp>

#include "cpu/forward_config.h"
#include "cpu/microkernel.h"
#include "cpu/scratch.h"
#include "shared/extents.h"
#include "shared/philox.h"

namespace sirdar::cpu {

// A tile is block_m rows of the queries that share a K/V head: row r stands for query position
// r / group_size and query head r % group_size of the group, so short sequences still fill lanes.
// Keys come in segments whose states are merged in order, whether one item computes all segments of
// a tile (the usual case) or each has its own (few tiles): the bits are the same.
struct WorkGrid {
  int64_t batch = 0, num_heads_kv = 0, tiles = 0;
  int64_t segments = 1;  // items per tile
  bool is_split() const { return segments > 1; }
  int64_t num_tiles() const { return batch * num_heads_kv * tiles; }
};
WorkGrid work_grid(const Problem& problem, const ForwardConfig& config);

// How the keys of a sequence are cut: depends on its own length only. `keys` is a multiple of
// block_n.
struct Segments {
  int64_t keys = 0, count = 0;
};
Segments segments_of(int64_t seqlen_k, const ForwardConfig& config);

TileShape tile_shape(const Problem& problem, const ForwardConfig& config,
                     const Expressions* expressions);

struct ForwardCall {
  const Problem& problem;
  const ForwardConfig& config;
  const Args& args;
  const MicroKernels& kernels;
  ProductKernels products;
  TileShape shape;
  WorkGrid grid;
  Extents query, key;
  RowMap q, k, v, out, lse, max_logit;
  BoundExpressions bound;  // at the start of the workspace
  float scale;
  float unit;  // the scale, where it is a power of two; else 1
  Dropout dropout;
  size_t input_format, output_format;  // indices into the tables of kernels
  int64_t input_bytes, output_bytes;   // of an element
  bool flushes_denormals = false;      // where scores may decay with the distance
  bool has_logit_terms = false;        // a built-in one besides the scaled dot product

  // `expressions` are those of the problem, null where it has none.
  ForwardCall(const Problem& problem, const ForwardConfig& config, const Args& args,
              const Expressions* expressions);
};

// The row at an offset in elements.
inline void* row_at(const TensorView& view, int64_t offset, int64_t element_bytes) {
  return static_cast<std::byte*>(view.data) + offset * element_bytes;
}

}  // namespace sirdar::cpu
