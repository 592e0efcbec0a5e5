#include "machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sirdar::emulator {
namespace {

thread_local Machine* machine = nullptr;
thread_local std::vector<std::unique_ptr<Stack>> spare_stacks;  // mapping memory is slow

std::unique_ptr<Stack> take_stack() {
  if (spare_stacks.empty()) return std::make_unique<Stack>();
  std::unique_ptr<Stack> stack = std::move(spare_stacks.back());
  spare_stacks.pop_back();
  return stack;
}

}  // namespace

Machine& Machine::current() { return *machine; }

namespace {
uint64_t num_blocks(const Launch& launch) {
  return uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
}
int num_slots(const Launch& launch) {
  const uint64_t resident = static_cast<uint64_t>(launch.resident) * launch.cluster;
  return static_cast<int>(std::min({num_blocks(launch), resident, uint64_t{kMaxSlots}}));
}
}  // namespace

Machine::Machine(const std::vector<Overlapping>& launches)
    : launch_(launches[0].launch), random_state_(launch_.seed * 0x9e3779b97f4a7c15u + 0x1234567u) {
  sites_.push_back({Op::kOther, "launch", 0});
  for (int i = 0; i < 8; ++i) random(2);
  for (const Overlapping& one : launches) {
    add_part(one, num_slots_, num_slots(one.launch));
    num_slots_ += num_slots(one.launch);
    most_threads_ = std::max(most_threads_, one.launch.threads);
  }
  segment_size_ = (first_bulk_written() + kMaxBulkThreads + 15) / 16 * 16;
  slot_base_.assign(static_cast<size_t>(num_slots_), 1);
  ctas_.resize(static_cast<size_t>(num_slots_));
  prepare(ended_);
  choose_policy();
}

void Machine::add_part(const Overlapping& launch, int first_slot, int num_slots) {
  Part& part = parts_.emplace_back();
  part.launch = &launch.launch;
  part.kernel = &launch.kernel;
  part.silent = num_blocks(launch.launch);
  part.unfinished = part.silent / static_cast<uint64_t>(launch.launch.cluster);
  for (int i = num_slots; i-- > 0;) part.free_slots.push_back(first_slot + i);
}

Machine::~Machine() {
  for (const auto& cta : ctas_)
    if (cta)
      for (const auto& fiber : cta->fibers)
        if (fiber->stack) spare_stacks.push_back(std::move(fiber->stack));
}

void Machine::choose_policy() {
  if (launch_.calm) {
    policy_ = {0, 1, false};
    return;
  }
  static constexpr double preemption[] = {0, 1.0 / 32, 1.0 / 4};
  static constexpr double asynchrony[] = {0, 1.0 / 128, 1.0 / 5, 7.0 / 8};
  policy_ = {preemption[random(3)], asynchrony[random(4)], random(2) == 1};
  priority_.resize(num_slots_ * ((most_threads_ + 31) / 32));
  for (int& priority : priority_) priority = static_cast<int>(random(1000));
}

uint32_t Machine::random(uint32_t below) {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return static_cast<uint32_t>(((random_state_ >> 32) * below) >> 32);
}

bool Machine::chance(double probability) {
  if (probability <= 0) return false;
  return random(1u << 24) < probability * (1u << 24);
}

// --- running ----------------------------------------------------------------------------------

Report Machine::run() {
  Machine* outer = machine;
  machine = this;
  try {
    start_part(parts_[0]);
    while (!failed_ && (!clusters_.empty() || !events_.empty())) step();
  } catch (const Abandoned&) {
  }
  machine = outer;
  for (const Site& site : sites_) report_.files.insert(base_name(site.file));
  return report_;
}

void Machine::start_part(Part& part) {
  for (uint64_t i = part.unfinished; i-- > 0;) part.waiting.push_back(i);
  if (!launch_.calm)  // blocks start in any order
    for (size_t i = part.waiting.size(); i > 1; --i)
      std::swap(part.waiting[i - 1], part.waiting[random(static_cast<uint32_t>(i))]);
  start_waiting_clusters(part);
}

void Machine::step() {
  if (!events_.empty() && (ready_.empty() || chance(policy_.asynchrony))) {
    run_event();
  } else if (ready_.empty()) {
    deadlock();
  } else {
    current_ = pick();
    ++report_.counters.switches;
    current_->context.resume();
    Fiber& fiber = *current_;
    if (fiber.done && !failed_) finish_thread(fiber);
    current_ = nullptr;
  }
}

Fiber* Machine::pick() {
  if (!policy_.priorities) return ready_[random(static_cast<uint32_t>(ready_.size()))];
  const auto priority_of = [&](const Fiber* fiber) {
    const int warps = (most_threads_ + 31) / 32, place = fiber->cta->slot * warps + fiber->warp;
    return priority_[static_cast<size_t>(place)];
  };
  if (chance(1.0 / 64))
    priority_[random(static_cast<uint32_t>(priority_.size()))] = static_cast<int>(random(1000));
  // The best of a few: exact order costs time and adds nothing.
  Fiber* best = ready_[random(static_cast<uint32_t>(ready_.size()))];
  for (int i = 0; i < 3; ++i) {
    Fiber* other = ready_[random(static_cast<uint32_t>(ready_.size()))];
    if (priority_of(other) > priority_of(best)) best = other;
  }
  return best;
}

void Machine::run_event() {
  const size_t index = launch_.calm ? 0 : random(static_cast<uint32_t>(events_.size()));
  Event event = std::move(events_[index]);
  if (launch_.calm) {
    events_.erase(events_.begin());
  } else {
    if (index + 1 != events_.size()) events_[index] = std::move(events_.back());
    events_.pop_back();
  }
  site_ = event.site;
  switch (event.kind) {
    case EventKind::kLoad:
      land(event);
      break;
    case EventKind::kStoreRead:
    case EventKind::kStoreWrite:
      store(event);
      break;
    case EventKind::kWgmma:
      execute(*event.warpgroup);
      break;
  }
}

void Machine::start_waiting_clusters(Part& part) {
  while (!part.waiting.empty() &&
         part.free_slots.size() >= static_cast<size_t>(part.launch->cluster)) {
    auto cluster = std::make_unique<Cluster>();
    cluster->number = part.waiting.back();
    part.waiting.pop_back();
    std::vector<int> slots;
    for (int i = 0; i < part.launch->cluster; ++i) {
      slots.push_back(part.free_slots.back());
      part.free_slots.pop_back();
    }
    start_cluster(part, std::move(cluster), slots);
  }
}

void Machine::start_cluster(Part& part, std::unique_ptr<Cluster> cluster,
                            const std::vector<int>& slots) {
  const Launch& launch = *part.launch;
  prepare(cluster->clock);
  prepare(cluster->done);
  for (int rank = 0; rank < launch.cluster; ++rank) {
    std::unique_ptr<Cta>& cta = ctas_[static_cast<size_t>(slots[static_cast<size_t>(rank)])];
    if (!cta) cta = std::make_unique<Cta>();
    cta->part = &part;
    cta->cluster = cluster.get();
    cta->rank = rank;
    cta->slot = slots[static_cast<size_t>(rank)];
    const uint64_t number =
        cluster->number * static_cast<uint64_t>(launch.cluster) + static_cast<uint64_t>(rank);
    cta->index[0] = static_cast<unsigned>(number % launch.grid.x);
    cta->index[1] = static_cast<unsigned>(number / launch.grid.x % launch.grid.y);
    cta->index[2] = static_cast<unsigned>(number / launch.grid.x / launch.grid.y);
    cluster->ctas.push_back(cta.get());
    start_cta(*cta);
  }
  cluster->running = launch.cluster;
  clusters_.push_back(std::move(cluster));
}

void Machine::start_cta(Cta& cta) {
  const Launch& launch = *cta.part->launch;
  cta.lets_next_begin = false;
  cta.shared.reset(kReservedShared + launch.misalignment +
                   static_cast<uint32_t>(launch.shared_bytes));
  cta.mbarriers.clear();
  cta.num_barriers = cta.num_bulk = 0;
  cta.incoming.clear();
  cta.named.clear();
  cta.named.resize(16);
  for (NamedBarrier& barrier : cta.named) prepare(barrier.clock);
  const int warps = (launch.threads + 31) / 32;
  cta.warps.clear();
  cta.warps.resize(static_cast<size_t>(warps));
  const int registers =
      launch.registers ? launch.registers : std::min(255, kRegistersPerSm / launch.threads) / 8 * 8;
  for (Warp& warp : cta.warps) {
    prepare(warp.clock);
    warp.registers = registers;
  }
  cta.free_registers = 0;
  cta.register_waiters.clear();
  cta.warpgroups.clear();
  cta.warpgroups.resize(static_cast<size_t>((warps + 3) / 4));
  for (size_t i = 0; i < cta.warpgroups.size(); ++i) {
    cta.warpgroups[i].cta = &cta;
    cta.warpgroups[i].index = static_cast<int>(i);
  }
  std::vector<std::unique_ptr<Stack>> stacks;
  for (auto& fiber : cta.fibers) stacks.push_back(std::move(fiber->stack));
  cta.fibers.clear();
  cta.running = launch.threads;
  for (int t = 0; t < launch.threads; ++t) {
    auto fiber = std::make_unique<Fiber>();
    if (stacks.empty()) {
      fiber->stack = take_stack();
    } else {
      fiber->stack = std::move(stacks.back());
      stacks.pop_back();
    }
    fiber->cta = &cta;
    fiber->thread = t, fiber->lane = t % 32, fiber->warp = t / 32, fiber->warpgroup = t / 128;
    fiber->component = component(cta, t);
    prepare(fiber->clock);
    fiber->clock.set(fiber->component, base(cta));
    fiber->context.start(*fiber->stack, &Machine::fiber_main, fiber.get());
    wake(fiber.get());
    cta.fibers.push_back(std::move(fiber));
  }
}

void Machine::fiber_main(void* argument) {
  Fiber* fiber = static_cast<Fiber*>(argument);
  try {
    (*fiber->cta->part->kernel)();
  } catch (const Abandoned&) {
  }
  fiber->done = true;
}

// --- fibers -----------------------------------------------------------------------------------

void Machine::wake(Fiber* fiber) {
  if (fiber->ready_index >= 0 || fiber->done) return;
  fiber->ready_index = static_cast<int>(ready_.size());
  ready_.push_back(fiber);
}

void Machine::wake_all(std::vector<Fiber*>& fibers) {
  for (Fiber* fiber : fibers) wake(fiber);
  fibers.clear();
}

namespace {
void remove_ready(std::vector<Fiber*>& ready, Fiber* fiber) {
  if (fiber->ready_index < 0) return;
  Fiber* last = ready.back();
  ready[static_cast<size_t>(fiber->ready_index)] = last;
  last->ready_index = fiber->ready_index;
  ready.pop_back();
  fiber->ready_index = -1;
}
}  // namespace

void Machine::block(Wait waiting, const void* object, int64_t detail) {
  Fiber& self = *current_;
  const uint32_t site = site_;
  self.waiting = waiting;
  self.waits_for = object;
  self.wait_detail = detail;
  remove_ready(ready_, &self);
  self.context.back();
  self.waiting = Wait::kNothing;
  site_ = site;
}

void Machine::yield() {
  const uint32_t site = site_;
  current_->context.back();
  site_ = site;
}

Change Machine::enter(Op op, Here here, int64_t key) {
  const uint64_t name = reinterpret_cast<uintptr_t>(here.file) * 0x9e3779b97f4a7c15u ^
                        (uint64_t{here.line} << 8 | static_cast<uint64_t>(op));
  const auto [found, is_new] = site_of_.try_emplace(name, static_cast<uint32_t>(sites_.size()));
  if (is_new) sites_.push_back({op, here.file, here.line});
  site_ = found->second;
  Fiber& self = *current_;
  self.site = site_;
  if (++report_.counters.operations == launch_.max_operations)
    fault("runaway", fmt::format("more than {} operations", launch_.max_operations));
  if (chance(policy_.preemption)) yield();
  const int warpgroup = self.warpgroup;
  if (launch_.coverage)
    ++launch_.coverage->counts[{base_name(here.file), here.line, op, key}][warpgroup];
  const Mutation& planted = launch_.mutation;
  if (planted.change == Change::kNone || planted.op != op || planted.line != here.line)
    return Change::kNone;
  if (planted.key >= 0 && planted.key != key) return Change::kNone;
  if (planted.warpgroup >= 0 && planted.warpgroup != warpgroup) return Change::kNone;
  return planted.file == base_name(here.file) ? planted.change : Change::kNone;
}

// A thread's clock is what another learns with it; what the thread does later is not part of it.
void Machine::release(Clock& clock) {
  clock.join(current_->clock);
  current_->advance();
}

void Machine::finish_thread(Fiber& fiber) {
  remove_ready(ready_, &fiber);
  Cta& cta = *fiber.cta;
  site_ = fiber.site;
  if (!fiber.live.empty()) fault("wgmma", "a thread ends with accumulators in flight");
  if (fiber.stored > fiber.read_waited)
    fault("exit",
          "a thread ends without waiting (wait_group.read 0) for its bulk stores to have "
          "read shared memory");
  if (--cta.running == 0) finish_cta(cta);
}

void Machine::finish_cta(Cta& cta) {
  Clock last;
  prepare(last);
  uint32_t highest = base(cta);
  for (const auto& fiber : cta.fibers) {
    last.join(fiber->clock);
    highest = std::max(highest, fiber->now());
    highest = std::max(highest, base(cta) + static_cast<uint32_t>(fiber->committed));
    if (cta.part != &parts_[0] || fiber->bulk_component == 0) continue;
    last.set(fiber->bulk_component + kMaxBulkThreads,  // and nothing is left over
             base(cta) + static_cast<uint32_t>(fiber->committed));
  }
  if (cta.part == &parts_[0]) ended_.join(last);
  for (const auto& [offset, barrier] : cta.mbarriers) {
    highest = std::max(highest, barrier->base + static_cast<uint32_t>(barrier->phase));
    if (barrier->pending == barrier->count && barrier->transaction == 0) continue;
    fault("exit", fmt::format("the block ends with mbarrier {:#x} (init at {}) in the middle of "
                              "phase {}: {} of {} arrivals missing, {} bytes outstanding",
                              offset, site_text(barrier->init.site), barrier->phase,
                              barrier->pending, barrier->count, barrier->transaction));
  }
  for (size_t id = 0; id < cta.named.size(); ++id)
    if (cta.named[id].arrived)
      fault("exit", fmt::format("the block ends with {} threads of {} arrived at named barrier {} "
                                "(at {})",
                                cta.named[id].arrived, cta.named[id].threads, id,
                                site_text(cta.named[id].site)));
  for (const Stamp& stamp : cta.incoming)
    if (!stamp.known_to(last))
      fault("exit", fmt::format("block {} of the cluster ends while {} may still come in: no "
                                "thread of it has waited for that",
                                cta.rank, site_text(stamp.site)));
  for (const Warpgroup& group : cta.warpgroups)
    highest = std::max(highest, base(cta) + static_cast<uint32_t>(group.executed));
  slot_base_[static_cast<size_t>(cta.slot)] = highest + 1;
  Cluster& cluster = *cta.cluster;
  if (--cluster.running > 0) return;
  if (cluster.arrived)
    fault("exit",
          fmt::format("the cluster ends with {} threads arrived at its barrier", cluster.arrived));
  for (const Event& event : events_)
    if (event.cta && event.cta->cluster == &cluster) {  // nothing refers to a cluster that is gone
      while (!events_.empty()) run_event();
      break;
    }
  Part& part = *cta.part;
  for (Cta* member : cluster.ctas) {
    part.free_slots.push_back(member->slot);
    speak(*member);
  }
  std::erase_if(clusters_, [&](const auto& other) { return other.get() == &cluster; });
  start_waiting_clusters(part);
  if (--part.unfinished > 0) return;
  wake_all(grid_waiters_);
  if (&part != &parts_[0] && !has_waited_for_grid_)
    fault("grid",
          "a launch ends, and none of its threads has waited for the one ahead "
          "(griddepcontrol.wait): "
          "what comes behind may begin before that has ended");
}

// --- between launches -------------------------------------------------------------------------

// The second launch begins when all blocks of the first have spoken.
void Machine::speak(Cta& cta) {
  if (cta.lets_next_begin) return;
  cta.lets_next_begin = true;
  if (--cta.part->silent > 0 || cta.part != &parts_[0] || parts_.size() < 2) return;
  start_part(parts_[1]);
}

void Machine::let_next_begin() { speak(*current_->cta); }

// Until the launch ahead has ended; all that it did can be seen then.
void Machine::wait_for_grid() {
  if (current_->cta->part == &parts_[0]) return;
  while (parts_[0].unfinished > 0) {
    grid_waiters_.push_back(current_);
    block(Wait::kGrid, nullptr);
  }
  current_->clock.join(ended_);
  has_waited_for_grid_ = true;
}

// --- launching --------------------------------------------------------------------------------

namespace {
// What is wrong with a launch, or "".
std::string refusal(const Launch& launch) {
  if (launch.threads < 1 || launch.threads > 1024)
    return fmt::format("launch: {} threads in a block; 1 to 1024 are allowed.", launch.threads);
  if (launch.shared_bytes < 0 || static_cast<uint32_t>(launch.shared_bytes) > kMaxSharedBytes)
    return fmt::format("launch: {} bytes of shared memory; a block may have {}.",
                       launch.shared_bytes, kMaxSharedBytes);
  if (launch.registers * launch.threads > kRegistersPerSm || launch.registers > 255)
    return fmt::format("launch: {} threads with {} registers each; {} registers are all.",
                       launch.threads, launch.registers, kRegistersPerSm);
  if (num_blocks(launch) == 0 || launch.cluster < 1 || launch.cluster > 16 ||
      launch.grid.x % static_cast<unsigned>(launch.cluster))
    return fmt::format(
        "launch: {} x {} x {} blocks in clusters of {}; a cluster is 1 to "
        "16 blocks and divides x.",
        launch.grid.x, launch.grid.y, launch.grid.z, launch.cluster);
  if (launch.resident < 1 || launch.misalignment % 16 || launch.misalignment > 1008)
    return fmt::format(
        "launch: {} resident clusters, misaligned by {}; at least one, and "
        "a multiple of 16 below 1024.",
        launch.resident, launch.misalignment);
  return "";
}

Report run(const std::vector<Overlapping>& launches) {
  Report refused;
  int slots = 0;
  for (const Overlapping& one : launches) {
    refused.fault = refusal(one.launch);
    if (!refused.ok()) return refused;
    slots += num_slots(one.launch);
  }
  if (slots > kMaxSlots)
    refused.fault = fmt::format("launch: {} blocks at one time; {} may be.", slots, kMaxSlots);
  return refused.ok() ? Machine(launches).run() : refused;
}
}  // namespace

Report launch(const Launch& launch, const std::function<void()>& kernel) {
  return run({{launch, kernel}});
}

Report launch(const Overlapping& first, const Overlapping& second) { return run({first, second}); }

Report launch(Grid grid, int threads, int shared_bytes, uint64_t seed,
              const std::function<void()>& kernel) {
  Launch options;
  options.grid = grid;
  options.threads = threads;
  options.shared_bytes = shared_bytes;
  options.seed = seed;
  return launch(options, kernel);
}

}  // namespace sirdar::emulator
