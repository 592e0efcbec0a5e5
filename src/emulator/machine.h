// A Hopper machine on the host: thread blocks whose threads are fibers, their shared memory, and
// the asynchronous work that they start. See docs/emulator.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "fiber.h"
#include "launch.h"
#include "operation.h"
#include "order.h"
#include "tensor_map_fields.h"

namespace sirdar::emulator {

struct Cta;
struct Cluster;
class Machine;

inline constexpr uint32_t kRankShift = 24;           // cluster rank in a shared address
inline constexpr uint32_t kReservedShared = 1024;    // what the system keeps for itself
inline constexpr uint32_t kMaxSharedBytes = 232448;  // of one block
inline constexpr int kRegistersPerSm = 65536;
inline constexpr int kMaxBarriers = 96, kMaxBulkThreads = 32;  // of one block, that clocks count
inline constexpr int kMaxSlots = 64;  // blocks that run at one time, which clocks tell apart

// Thrown to leave a kernel or an event after a fault; the entry of the fiber catches it.
struct Abandoned {};

// What a fiber waits for.
enum class Wait : uint8_t {
  kNothing,
  kMbarrier,
  kNamed,
  kCluster,
  kWarp,
  kBulk,
  kWgmma,
  kRegisters,
  kGlobal,
  kGrid
};

struct Accumulator {          // registers of 128 threads that wgmma operations in flight own
  std::vector<float> values;  // [64][n]
  int n = 0;
  float* registers[128] = {};
  int holders = 0;  // threads that have not waited yet
};

struct LiveAccumulator {
  float* at;
  int count;
  Accumulator* accumulator;
  uint64_t last;  // operation of the warpgroup that writes it last, counted from 1
};

struct KnownRegisters {  // operands of earlier wgmma, with their contents at the last wgmma.fence
  const uint32_t* at;
  int count;
  std::vector<uint32_t> contents;
};

struct BulkGroup {
  int reads = 0, writes = 0;  // still to come
};

// Loads of a thread from what the asynchronous proxy has written and may write next. Such a load is
// over when a product takes its words as they are; what else a kernel does with them is not seen.
class Loads {
 public:
  uint32_t begin() {
    taken_at_.push_back(0);
    return static_cast<uint32_t>(taken_at_.size());
  }
  void return_words(const void* words, uint32_t bytes);  // of the one that has begun
  // A product takes these registers, at a count of the thread's clock.
  void take(const uint32_t* registers, int num, uint32_t count);
  void forget() { pending_.clear(); }  // behind a fence
  uint32_t taken_at(uint32_t load) const { return load == 0 ? 0 : taken_at_[load - 1]; }  // 0: not

 private:
  struct Pending {
    uint32_t load, words[4];
    int num;
  };
  std::vector<Pending> pending_;
  std::vector<uint32_t> taken_at_;
};

struct Fiber {
  Context context;
  std::unique_ptr<Stack> stack;
  Cta* cta = nullptr;
  int thread = 0, lane = 0, warp = 0, warpgroup = 0;
  uint32_t component = 0;
  Clock clock;
  int ready_index = -1;  // in Machine::ready, or -1
  bool done = false;
  Wait waiting = Wait::kNothing;
  const void* waits_for = nullptr;
  int64_t wait_detail = 0;
  uint32_t site = 0;
  // counts at which this thread executed a fence
  std::vector<uint32_t> proxy_fences, init_fences;
  Loads loads;

  // meeting of a warp
  uint32_t given[10] = {}, got[4] = {};
  uint64_t cluster_arrivals = 0;

  // wgmma
  uint64_t issued = 0;            // operations
  std::vector<uint64_t> commits;  // operations issued at each commit_group not yet waited for
  bool fenced = false;
  std::vector<LiveAccumulator> live;
  std::vector<KnownRegisters> known;
  size_t known_cursor = 0;

  // bulk stores
  uint32_t bulk_component = 0;                          // 0: none yet
  std::map<uint64_t, BulkGroup> groups;                 // by number; those with work left
  uint64_t committed = 0, read_waited = 0, stored = 0;  // groups; stored: with a store in them

  uint32_t now() const { return clock[component]; }
  void advance() { clock.set(component, now() + 1); }
};

struct Mbarrier {
  Cta* cta;
  uint32_t offset, count, component, base;
  int64_t phase = 0, pending = 0, transaction = 0;
  Clock accumulating, done;
  bool remote_arrivals = false;
  Stamp init;
  std::vector<Fiber*> waiters;
  uint32_t last_sites[4] = {};
  int num_last_sites = 0;
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
  uint64_t phase = 0;
  Clock clock;
  std::unordered_map<int, uint32_t> lanes;  // of each warp
  std::vector<Fiber*> waiters;
  uint32_t site = 0;
};

struct Warp {  // a meeting of its lanes
  uint32_t arrived = 0, expected = 0;
  uint64_t phase = 0;
  uint32_t site = 0, argument = 0;
  Clock clock;
  std::vector<Fiber*> waiters;
  int registers = 0;  // of a thread
};

struct MmaOp {
  uint64_t a_descriptor = 0, b_descriptor = 0;
  bool a_in_registers = false, transpose_a = false, transpose_b = false, scale_d = false;
  bool fp16 = false;
  int n = 0, arrived = 0;
  uint32_t site = 0;
  Change change = Change::kNone;
  Accumulator* accumulator = nullptr;
  const uint32_t* a[128] = {};
  uint32_t a_copy[128][4] = {};
};

struct Warpgroup {
  Cta* cta = nullptr;
  int index = 0;
  std::deque<std::unique_ptr<MmaOp>> ops;  // not executed yet
  uint64_t executed = 0;
  std::vector<std::unique_ptr<Accumulator>> accumulators, spare;
  std::vector<Fiber*> waiters;
};

// A launch of those that the machine runs.
struct Part {
  const Launch* launch = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::vector<uint64_t> waiting;  // numbers of clusters, to be started from the back
  std::vector<int> free_slots;
  uint64_t unfinished = 0;  // clusters
  uint64_t silent = 0;      // blocks that have neither ended nor let the next launch begin
};

struct Cta {
  Part* part = nullptr;
  Cluster* cluster = nullptr;
  bool lets_next_begin = false;
  int rank = 0, slot = 0;
  unsigned index[3] = {};
  SharedMemory shared;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::unordered_map<uint32_t, std::unique_ptr<Mbarrier>> mbarriers;
  int num_barriers = 0, num_bulk = 0;
  std::vector<NamedBarrier> named;
  std::vector<Warp> warps;
  std::deque<Warpgroup> warpgroups;
  int free_registers = 0;
  std::vector<Fiber*> register_waiters;
  int running = 0;
  std::vector<Stamp> incoming;  // remote arrivals and multicasts
};

struct Cluster {
  std::vector<Cta*> ctas;
  int arrived = 0, running = 0;
  uint64_t phase = 0;
  Clock clock, done;
  std::vector<Fiber*> waiters;
  uint64_t number = 0;
};

enum class EventKind : uint8_t { kLoad, kStoreRead, kStoreWrite, kWgmma };

struct Event {
  EventKind kind;
  uint32_t site = 0;
  MapFields map;
  int coordinates[5] = {};
  Cta* cta = nullptr;
  uint32_t offset = 0;
  int first_row = 0, last_row = 0;
  Mbarrier* barrier = nullptr;
  int64_t phase = 0;
  Fiber* issuer = nullptr;
  uint64_t group = 0;
  bool reduce = false;
  std::vector<uint8_t> bytes;
  Warpgroup* warpgroup = nullptr;
};

// Accesses to the machine by kernels go through the functions below; ptx/*.cuh gives them the names
// of instructions.
class Machine {
 public:
  explicit Machine(const std::vector<Overlapping>& launches);
  ~Machine();
  Report run();

  static Machine& current();
  Fiber& fiber() { return *current_; }
  const Launch& launch() const { return *current_->cta->part->launch; }  // of this thread
  Counters& counters() { return report_.counters; }

  // Starts an operation: counts it, may let others run first, says what is planted here.
  Change enter(Op op, Here here, int64_t key = -1);
  [[noreturn]] void fault(const std::string& kind, const std::string& text);
  // Sleeps until woken; the caller looks again whether it may go on.
  void block(Wait waiting, const void* object, int64_t detail = 0);
  void wake(Fiber* fiber);
  void wake_all(std::vector<Fiber*>& fibers);
  void yield();
  bool chance(double probability);
  uint32_t random(uint32_t below);

  uint32_t site_index() const { return site_; }
  std::string site_text(uint32_t index) const { return text_of(sites_[index]); }
  // A clock of the launch's size.
  void prepare(Clock& clock) const { clock.resize(num_slots_, segment_size_); }
  uint32_t component(const Cta& cta, int local) const {
    return static_cast<uint32_t>(cta.slot * segment_size_ + local);
  }
  int first_mbarrier() const { return most_threads_; }
  int first_warp() const { return first_mbarrier() + kMaxBarriers; }
  int first_bulk() const { return first_warp() + most_threads_ / 32 + 3; }
  int first_bulk_written() const { return first_bulk() + kMaxBulkThreads; }
  uint32_t base(const Cta& cta) const { return slot_base_[static_cast<size_t>(cta.slot)]; }

  void release(Clock& clock);
  Stamp stamp() const { return {current_->component, current_->now(), site_, false}; }

  // --- shared memory (memory.cc)
  struct Place {
    Cta* cta;
    uint32_t offset;
  };
  Place resolve(uint32_t address, uint32_t bytes, uint32_t alignment);
  void read_shared(uint32_t address, void* to, uint32_t bytes);
  void write_shared(uint32_t address, const void* from, uint32_t bytes);
  void check_known(Place place, const Record& record, const char* what, const Clock& clock);
  void check_readers(Place place, const Record& record, const Clock& clock);
  bool is_fenced(const Stamp& access, const Clock& clock) const;
  void check_proxy(Place place, const Record& record, const Clock& clock);
  void check_read_proxy(Place place, const Record& record, const Clock& clock);
  void check_no_mbarrier(Place place, uint32_t bytes);

  // --- barriers (barriers.cc)
  Mbarrier& mbarrier(uint32_t address, bool own);
  void check_visible_to_async(const Mbarrier& barrier);
  void arrive(Mbarrier& barrier, int64_t transaction);
  void complete_if_done(Mbarrier& barrier);
  bool phase_is_over(const Mbarrier& barrier, uint32_t parity) const {
    return (barrier.phase & 1) != static_cast<int64_t>(parity);
  }
  void wait(Mbarrier& barrier, uint32_t parity, bool cluster_scope);
  void init_mbarrier(uint32_t address, int count);
  void named_barrier(int id, int threads, bool sync);
  void cluster_arrive();
  void cluster_wait();

  // --- global memory, between blocks: flags, and what is stored in bulk (memory.cc)
  void wait_global(const int* address, int value);
  void release_global(int* address, int value);
  void store_global(const void* address, uint32_t bytes, bool adds, const Stamp& stamp);
  void write_global(const void* address, uint32_t bytes);  // by ordinary stores
  void read_global(const void* address, uint32_t bytes);

  // --- between launches
  bool overlaps() const { return parts_.size() > 1; }
  void let_next_begin();
  void wait_for_grid();

  // --- warps (warp.cc): all lanes of `mask` meet; the last to arrive calls `act`.
  using Act = std::function<void(Fiber* const*)>;  // by lane; null: not in the mask
  void meet(uint32_t mask, uint32_t argument, bool order, const Act& act);

  // --- asynchronous work
  void post(Event&& event) { events_.push_back(std::move(event)); }
  void land(Event& event);
  void store(Event& event);
  void execute(Warpgroup& warpgroup);

  std::vector<Cta*> resident() const;

 private:
  struct Policy {
    double preemption, asynchrony;
    bool priorities;
  };
  struct Line {  // of global memory that is stored in bulk
    uintptr_t end = 0;
    bool is_ordered = false;  // somebody has stored to it; others add in an order
    std::vector<Stamp> writes;
  };

  static void fiber_main(void* fiber);
  void choose_policy();
  void add_part(const Overlapping& launch, int first_slot, int num_slots);
  void start_part(Part& part);
  void start_cluster(Part& part, std::unique_ptr<Cluster> cluster, const std::vector<int>& slots);
  void start_cta(Cta& cta);
  void finish_thread(Fiber& fiber);
  void finish_cta(Cta& cta);
  void start_waiting_clusters(Part& part);
  void speak(Cta& cta);
  void step();
  Fiber* pick();
  void run_event();
  void deadlock();
  std::string waiting_text(const Fiber& fiber) const;
  std::string place_text(const Fiber& fiber) const;

  const Launch launch_;     // the first
  std::deque<Part> parts_;  // of which the second begins when the first lets it
  Clock ended_;             // what threads of the first knew when they ended
  bool has_waited_for_grid_ = false;
  int most_threads_ = 0;
  Report report_;
  Policy policy_{};
  uint64_t random_state_;
  int num_slots_ = 0, segment_size_ = 0;
  std::vector<uint32_t> slot_base_;
  std::vector<std::unique_ptr<Cta>> ctas_;  // by slot
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<Fiber*> ready_;
  std::vector<Fiber*> global_waiters_, grid_waiters_;
  std::unordered_map<const int*, Clock> flags_;  // what who stored it knew
  std::map<uintptr_t, Line> lines_;              // by their first byte
  std::unordered_map<uintptr_t, Stamp> stores_;  // ordinary ones: who wrote each four bytes last
  std::vector<Event> events_;
  std::vector<int> priority_;
  Fiber* current_ = nullptr;
  uint32_t site_ = 0;
  std::vector<Site> sites_;
  std::unordered_map<uint64_t, uint32_t> site_of_;
  bool failed_ = false;
};

}  // namespace sirdar::emulator
