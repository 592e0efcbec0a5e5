// mbarriers, named barriers and the cluster's barrier.
#include <fmt/format.h>

#include <algorithm>

#include "machine.h"

namespace sirdar::emulator {

void Machine::init_mbarrier(uint32_t address, int count) {
  Place place = resolve(address, 8, 8);
  check_no_mbarrier(place, 8);
  if (count < 1 || count >= 1 << 20)
    fault("mbarrier", fmt::format("init with a count of {}; 1 to 2^20 - 1 are allowed", count));
  if (place.cta != current_->cta) fault("mbarrier", "init of an mbarrier of another block");
  place.cta->shared.for_records(place.offset, 8, [&](Record& record) {
    if (record.written)
      fault("mbarrier", fmt::format("init at shared {:#x}, which holds data written at {}",
                                    place.offset, site_text(record.write.site)));
  });
  if (place.cta->num_barriers == kMaxBarriers)
    fault("mbarrier", fmt::format("more than {} mbarriers in a block", kMaxBarriers));
  auto barrier = std::make_unique<Mbarrier>();
  barrier->cta = place.cta;
  barrier->offset = place.offset;
  barrier->count = static_cast<uint32_t>(count);
  barrier->pending = count;
  barrier->component = component(*place.cta, first_mbarrier() + place.cta->num_barriers++);
  barrier->base = base(*place.cta);
  barrier->init = stamp();
  prepare(barrier->accumulating);
  prepare(barrier->done);
  place.cta->mbarriers[place.offset] = std::move(barrier);
}

Mbarrier& Machine::mbarrier(uint32_t address, bool own) {
  const Place place = resolve(address, 8, 8);
  if (own && place.cta != current_->cta)
    fault("mbarrier", fmt::format("mbarrier {:#x} belongs to block {} of the cluster; here one of "
                                  "the thread's own block is needed",
                                  place.offset, place.cta->rank));
  const auto found = place.cta->mbarriers.find(place.offset);
  if (found == place.cta->mbarriers.end())
    fault("mbarrier", fmt::format("shared {:#x} of block {} is not an initialised mbarrier",
                                  place.offset, place.cta->rank));
  Mbarrier& barrier = *found->second;
  if (launch_.check_order && !barrier.init.known_to(current_->clock))
    fault("order",
          fmt::format("use of mbarrier {:#x} of block {} is not ordered after its init at {}",
                      place.offset, place.cta->rank, site_text(barrier.init.site)));
  return barrier;
}

// The asynchronous proxy and other blocks see an init after a fence of the thread that did it.
void Machine::check_visible_to_async(const Mbarrier& barrier) {
  if (!launch_.check_order) return;
  const int slot = barrier.cta->slot;
  const int thread = static_cast<int>(barrier.init.component) - slot * segment_size_;
  const Fiber& initialiser = *barrier.cta->fibers[static_cast<size_t>(thread)];
  for (const auto* fences : {&initialiser.init_fences, &initialiser.proxy_fences}) {
    const auto fence = std::lower_bound(fences->begin(), fences->end(), barrier.init.count);
    if (fence != fences->end() && current_->clock[barrier.init.component] > *fence) return;
  }
  fault("proxy", fmt::format("mbarrier {:#x} (init at {}) is used by the asynchronous proxy or "
                             "another block with no fence.mbarrier_init after its init",
                             barrier.offset, site_text(barrier.init.site)));
}

void Machine::arrive(Mbarrier& barrier, int64_t transaction) {
  if (barrier.cta != current_->cta) {
    check_visible_to_async(barrier);
    barrier.remote_arrivals = true;
    barrier.cta->incoming.push_back(stamp());
  }
  if (barrier.pending == 0)
    fault("mbarrier",
          fmt::format("an arrival at mbarrier {:#x} (init at {}) more than its count of "
                      "{} in phase {}",
                      barrier.offset, site_text(barrier.init.site), barrier.count, barrier.phase));
  barrier.last_sites[barrier.num_last_sites++ % 4] = site_;
  release(barrier.accumulating);
  barrier.pending -= 1;
  barrier.transaction += transaction;
  complete_if_done(barrier);
}

void Machine::complete_if_done(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.transaction != 0) return;
  barrier.phase += 1;
  barrier.pending = barrier.count;
  barrier.done.swap(barrier.accumulating);
  barrier.accumulating.clear();
  barrier.done.set(barrier.component, barrier.base + static_cast<uint32_t>(barrier.phase));
  wake_all(barrier.waiters);
}

void Machine::wait(Mbarrier& barrier, uint32_t parity, bool cluster_scope) {
  while (!phase_is_over(barrier, parity)) {
    barrier.waiters.push_back(current_);
    block(Wait::kMbarrier, &barrier, parity);
  }
  if (barrier.remote_arrivals && !cluster_scope)
    fault("scope",
          fmt::format("other blocks arrive at mbarrier {:#x} (init at {}), so its wait must "
                      "acquire at cluster scope",
                      barrier.offset, site_text(barrier.init.site)));
  const uint32_t count = barrier.base + static_cast<uint32_t>(barrier.phase);
  if (barrier.phase > 0 && current_->clock[barrier.component] < count)
    current_->clock.join(barrier.done);
}

void Machine::named_barrier(int id, int threads, bool sync) {
  Cta& cta = *current_->cta;
  if (id < 0 || id > 15) fault("named barrier", fmt::format("barrier {}; there are 0 to 15", id));
  if (threads < 32 || threads % 32 || threads > (launch().threads + 31) / 32 * 32)
    fault("named barrier",
          fmt::format("barrier {} of {} threads; a multiple of 32 up to the block's "
                      "{} is allowed",
                      id, threads, launch().threads));
  NamedBarrier& barrier = cta.named[static_cast<size_t>(id)];
  if (barrier.arrived == 0) {
    barrier.threads = threads;
  } else if (barrier.threads != threads) {
    fault("named barrier",
          fmt::format("barrier {} of {} threads; earlier ones of this phase said {}", id, threads,
                      barrier.threads));
  }
  const uint32_t lane = 1u << current_->lane;
  uint32_t& lanes = barrier.lanes[current_->warp];
  if (lanes & lane)
    fault("named barrier", fmt::format("a warp arrives twice in one phase of barrier {}", id));
  lanes |= lane;
  barrier.site = site_;
  release(barrier.clock);
  if (++barrier.arrived == barrier.threads) {
    for (const auto& [warp, mask] : barrier.lanes)
      if (mask != 0xffffffffu && launch().threads >= (warp + 1) * 32)
        fault("named barrier", fmt::format("barrier {} is full with lanes {:#010x} of warp {} only",
                                           id, mask, warp));
    ++barrier.phase;
    barrier.arrived = 0;
    barrier.lanes.clear();
    for (Fiber* fiber : barrier.waiters) fiber->clock.join(barrier.clock);
    if (sync) current_->clock.join(barrier.clock);
    wake_all(barrier.waiters);
    barrier.clock.clear();
  } else if (sync) {
    barrier.waiters.push_back(current_);
    for (const uint64_t phase = barrier.phase; phase == barrier.phase;)
      block(Wait::kNamed, &barrier, id);
  }
}

void Machine::cluster_arrive() {
  Cluster& cluster = *current_->cta->cluster;
  if (current_->cluster_arrivals > cluster.phase)
    fault("cluster barrier", "a thread arrives twice in one phase");
  ++current_->cluster_arrivals;
  release(cluster.clock);
  if (++cluster.arrived < launch().cluster * launch().threads) return;
  cluster.arrived = 0;
  ++cluster.phase;
  cluster.done.swap(cluster.clock);
  cluster.clock.clear();
  wake_all(cluster.waiters);
}

void Machine::cluster_wait() {
  Cluster& cluster = *current_->cta->cluster;
  if (current_->cluster_arrivals == 0)
    fault("cluster barrier", "a thread waits before it has arrived");
  while (cluster.phase < current_->cluster_arrivals) {
    cluster.waiters.push_back(current_);
    block(Wait::kCluster, &cluster);
  }
  current_->clock.join(cluster.done);
}

}  // namespace sirdar::emulator
