// What the backward pass finds out about each query row before it meets a key.
#pragma once

#include "cpu/backward_tile.h"

namespace sirdar::cpu {

// Fills the row states of tile `tile` of head h, and its part of dsink; writes zeros to its dq.
void prepare_rows(const BackwardCall& call, BackwardScratch& scratch, int64_t b, int64_t h,
                  int64_t tile);

}  // namespace sirdar::cpu
