// The Hopper backward: a thread block has 128 keys (64) of a K/V head and walks the query tiles of
// all heads of its group. README.md has the plan, the barriers and the measurements. Device half;
// backward.cc fills the parameters.
#pragma once

#include "cuda/sm90/backward/convert.cuh"
#include "cuda/sm90/backward/cover_walks.cuh"
#include "cuda/sm90/backward/helpers.cuh"
#include "cuda/sm90/backward/key_gradient.cuh"
#include "cuda/sm90/backward/prepare.cuh"
#include "cuda/sm90/backward/query_gradient.cuh"
#include "cuda/sm90/backward/sink.cuh"
#include "cuda/sm90/backward/wide_gradient.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void backward(const BackwardParams& params, const Modification& modification = {}) {
  static_assert(is_valid(config) && config.has_score_mod == Modification::kScores &&
                config.has_mask_mod == Modification::kMasks);
  // Swizzled tiles want 1024-byte alignment; shared_bytes() pays for it.
  const BackwardShared<config> shared{(ptx::dynamic_shared() + 1023) & ~1023u};
  const int thread = ptx::thread_idx_x();
  const int warpgroup = ptx::uniform(thread / 128);
  if (thread == 0) init_barriers(shared);
  if constexpr (config.cluster_size > 1) {
    ptx::cluster_sync();
  } else {
    ptx::syncthreads();
  }
  ptx::griddepcontrol_wait();
  if constexpr (config.converts_early) ptx::griddepcontrol_launch_dependents();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<helper_registers(config)>();
    const int warp = ptx::uniform(thread / 32);
    if (warp == 0) {
      if (config.has_lengths || thread == 0) Loader<config>{params, shared, thread}.run();
    } else if (warp <= num_reducers(config) && thread % 32 == 0) {
      Reducer<config>{params, shared, warp - 1}.run();
    } else if (config.cluster_size > 1 && thread == 96) {
      Sender<config>{params, shared}.run();
    } else if constexpr (config.num_stages_bias > 0) {
      if (thread == 96) BiasLoader<config>{params, shared}.run();
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_dec<kQueryRegisters>();
    QueryGradient<config>(params, shared, thread % 128).run();
  } else {
    ptx::setmaxnreg_inc<kKeyRegisters>();
    if constexpr (!is_wide(config)) {
      KeyGradient<config, Modification>(params, modification, shared, warpgroup - 2, thread % 128)
          .run();
    } else if (warpgroup == 2) {
      ValueGradient<config, Modification>(params, modification, shared, thread % 128).run();
    } else {
      WideKeyGradient<config, Modification>(params, modification, shared, thread % 128).run();
    }
  }
  // Nobody leaves while the other block may still write here.
  if constexpr (config.cluster_size > 1) {
    ptx::syncwarp();
    ptx::cluster_sync();
  }
}

template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_backward(const ModifiedBackwardParams<Modification>& params) {
  backward<config>(params.backward, params.modification);
}

}  // namespace sirdar::sm90
