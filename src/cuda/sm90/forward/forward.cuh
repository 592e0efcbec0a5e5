// The Hopper forward: a persistent block of one producer and some consumer warpgroups. README.md
// has the plan, the barriers and the measurements. Device half; forward.cc fills the parameters.
#pragma once

#include "cuda/sm90/forward/bias_producer.cuh"
#include "cuda/sm90/forward/combine.cuh"
#include "cuda/sm90/forward/consumer.cuh"
#include "cuda/sm90/forward/last_round.cuh"
#include "cuda/sm90/forward/producer.cuh"
#include "cuda/sm90/forward/restorer.cuh"
#include "cuda/sm90/forward/storer.cuh"

namespace sirdar::sm90 {

// counters: the kernel's own.
template <ForwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void forward(const ForwardParams& params, Counters* counters = nullptr,
                           const Modification& modification = {}) {
  static_assert(is_valid(config));
  // Swizzled tiles want 1024-byte alignment; shared_bytes() pays for it.
  const SharedAddresses<config> shared{(ptx::dynamic_shared() + 1023) & ~1023u};
  const int thread = ptx::thread_idx_x();
  const int warpgroup = ptx::uniform(thread / 128);
  if (thread == 0) init_barriers(shared);
  if constexpr (config.cluster_size > 1) {
    ptx::cluster_sync();
  } else {
    ptx::syncthreads();
  }
  if constexpr (config.has_mask_mod) ptx::griddepcontrol_wait();            // for cover_keys()
  if constexpr (is_split(config)) ptx::griddepcontrol_launch_dependents();  // combine()
  if (warpgroup == 0) {
    if constexpr (config.moves_registers) {
      ptx::setmaxnreg_dec<producer_registers(config)>();
    }
    const int warp = ptx::uniform(thread / 32);
    if (warp == 0) Producer<config>(params, counters, shared, thread).run();
    if constexpr (hands_rows_over(config)) {
      if (warp == 2) {
        Restorer<config, Modification>{params, modification, shared, thread % 32}.run();
      }
    }
    if constexpr (sends_out(config)) {
      if (warp == 1 || (warp == 3 && config.num_consumers > 1)) {
        Storer<config>{params, shared, warp / 2, thread % 32}.run();
      }
    }
    if constexpr (config.num_stages_bias > 0) {
      if (warp == 1) BiasProducer<config>(params, shared, thread % 32).run();
    }
  } else {
    if constexpr (config.moves_registers) {
      ptx::setmaxnreg_inc<consumer_registers(config)>();
    }
    Consumer<config, Modification> consumer(params, modification, shared, warpgroup - 1,
                                            thread % 128);
    if constexpr (config.shares_last_round) consumer.counters = counters;
    consumer.run();
  }
  // Nobody leaves while the other block may still write here.
  if constexpr (config.cluster_size > 1) {
    ptx::syncwarp();
    ptx::cluster_sync();
  }
}

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void modified_forward(const ModifiedParams<Modification>& params,
                                    Counters* counters = nullptr) {
  forward<config>(params.forward, counters, params.modification);
}

}  // namespace sirdar::sm90
