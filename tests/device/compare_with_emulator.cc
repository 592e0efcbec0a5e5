// Runs what single instructions do on the emulated machine and on a GPU, and compares word by word
// (docs/emulator.md, "Compared with hardware"). Without a GPU it runs the emulated half and
// compiles the kernels, which fills SIRDAR_CACHE_DIR.
//
// usage: compare_with_emulator [PART]
// PART: only trials whose names it is part of. A fault ends what a process can do with a GPU.
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "cuda/context.h"
#include "cuda/launch.h"
#include "cuda/tensor_map.h"
#include "emulator/launch.h"
#include "emulator/support/emulated_driver.h"
#include "emulator/tensor_map_fields.h"
#include "jit/source.h"
#include "ptx/all.cuh"
#include "shared/float_bits.h"

namespace sirdar::device_tests {

#include "device/probes.cuh"

namespace {

constexpr char kText[] =
#include "device/probes_text.inc"
    ;

using Words = std::vector<uint32_t>;

struct Trial {
  std::string name;
  KernelSource source;
  std::function<void(const ProbeParams&)> run;  // one thread, on the emulated machine
  ProbeParams params{};
  cuda::TensorMapSpec map_a{}, map_b{};  // rank 0: none
  Words a, b;                            // the tensors; a is also read word by word
  Words expected{};                      // empty: what the emulated machine says
  bool sees_tensor = false;              // what is left in a is the result
};

struct Outcome {
  Status status;
  Words seen;
};

template <ProbeConfig config>
Trial trial(const std::string& name, int num_words) {
  Trial t;
  t.name = name;
  t.source.header = "ptx/all.cuh";
  t.source.scope = "sirdar::device_tests";
  t.source.definitions = kText;
  t.source.config_type = "ProbeConfig";
  t.source.config_text = jit::config_text(config, t.source.config_type);
  t.source.function = "probe";
  t.source.params_type = "ProbeParams";
  t.source.entry = "sirdar_probe";
  t.source.threads = 128;
  t.source.shared_bytes = shared_bytes(config);
  t.run = [](const ProbeParams& params) { probe<config>(params); };
  t.params.num_words = num_words;
  return t;
}

// ---- trials

// A tensor of 16-bit numbers that say where they are, and a box of it.
struct Box {
  std::array<int64_t, 5> dims;
  std::array<int, 5> box;
  std::array<int, 5> at;
  cuda::Swizzle swizzle = cuda::Swizzle::none;
  int rank = 4, offset = 0;
};

int64_t elements(const Box& box) {
  int64_t count = 1;
  for (int i = 0; i < box.rank; ++i) count *= box.dims[static_cast<size_t>(i)];
  return count;
}

void set_box(Trial& t, const Box& box, DType dtype = DType::bf16) {
  const int64_t size = size_bytes(dtype);
  t.map_a.dtype = dtype;
  t.map_a.rank = box.rank;
  t.map_a.swizzle = box.swizzle;
  int64_t stride = size;
  t.params.bytes = static_cast<int>(size);
  for (size_t i = 0; i < static_cast<size_t>(box.rank); ++i) {
    t.map_a.dims[i] = box.dims[i];
    t.map_a.box[i] = box.box[i];
    if (i > 0) t.map_a.stride_bytes[i - 1] = stride;
    stride *= box.dims[i];
    t.params.at[i] = box.at[i];
    t.params.bytes *= box.box[i];
  }
  t.params.offset = box.offset;
  t.a.resize(static_cast<size_t>(elements(box) * size / 4));
  for (size_t i = 0; i < t.a.size(); ++i)
    t.a[i] = static_cast<uint32_t>(2 * i + 1) | static_cast<uint32_t>(2 * i + 2) << 16;
}

Trial load(const std::string& name, const Box& box) {
  Trial t = trial<ProbeConfig{.kind = Kind::load}>(name, 4096);
  set_box(t, box);
  return t;
}

// Chunks lie where the bits of their address say, wherever the box begins.
Trial load_inside_atom(const std::string& name, Box box) {
  const int offset = box.offset;
  const cuda::Swizzle swizzle = box.swizzle;
  Trial t = load(name, box);
  t.expected.resize(4096);
  for (uint32_t i = 0; i < 4096; ++i) t.expected[i] = 0x5a000000u + i;
  const auto row = static_cast<uint32_t>(swizzle);
  const emulator::Swizzle kind = swizzle == cuda::Swizzle::bytes_128  ? emulator::Swizzle::k128
                                 : swizzle == cuda::Swizzle::bytes_64 ? emulator::Swizzle::k64
                                                                      : emulator::Swizzle::k32;
  for (uint32_t byte = 0; byte < static_cast<uint32_t>(t.params.bytes); byte += 4) {
    const uint32_t linear = static_cast<uint32_t>(offset) + byte;
    const uint32_t at = emulator::swizzled(linear & ~15u, kind) | (linear & 15u);
    const auto words = static_cast<uint32_t>(box.dims[0]) / 2;
    t.expected[at / 4] = t.a[byte / row * words + byte % row / 4];
  }
  return t;
}

template <Kind kind>
Trial store(const std::string& name, const Box& box, DType dtype) {
  Trial t = trial<ProbeConfig{.kind = kind}>(name, 2048);
  set_box(t, box, dtype);
  if (kind == Kind::reduce)  // numbers that can be added
    for (uint32_t& word : t.a) word = dtype == DType::fp32 ? 0x40000000u : 0x40004080u;
  t.sees_tensor = true;
  return t;
}

cuda::TensorMapSpec operand_map(int rows, int span, bool transposed) {
  const int width = transposed ? rows : 64, height = transposed ? 64 : rows;
  return {.base = nullptr,
          .dtype = DType::bf16,
          .rank = 4,
          .dims = {width, height, 1, 1},
          .stride_bytes = {2 * width, 1 << 20, 1 << 20},
          .box = {span / 2, height, 1, 1},
          .swizzle = static_cast<cuda::Swizzle>(span)};
}

Words operand(int rows, bool transposed, bool is_fp16, int salt) {
  std::vector<uint16_t> data(static_cast<size_t>(rows) * 64);
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < 64; ++k) {
      const float value = element(row, k, salt);
      data[static_cast<size_t>(transposed ? k * rows + row : row * 64 + k)] =
          is_fp16 ? float_to_fp16(value) : float_to_bf16(value);
    }
  Words words(data.size() / 2);
  std::memcpy(words.data(), data.data(), 2 * data.size());
  return words;
}

template <ProbeConfig config>
Trial product(const std::string& name) {
  Trial t = trial<config>(name, 64 * config.n);
  t.map_a = operand_map(64, config.span_a, config.transpose_a != 0);
  t.map_b = operand_map(config.n, config.span_b, config.transpose_b != 0);
  t.a = operand(64, config.transpose_a != 0, config.is_fp16, 1);
  t.b = operand(config.n, config.transpose_b != 0, config.is_fp16, 2);
  return t;
}

template <Kind kind>
Trial numbers(const std::string& name, const Words& pairs) {
  Trial t = trial<ProbeConfig{.kind = kind}>(name, static_cast<int>(2 * pairs.size()));
  t.a = pairs;
  return t;
}

Words random_pairs(bool may_be_nan) {
  std::mt19937 random(5);
  Words pairs;
  while (pairs.size() < 4096) {
    const auto bits = static_cast<uint32_t>(random());
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    if (is_nan == may_be_nan) pairs.push_back(bits);
    if (may_be_nan && !is_nan) pairs.push_back(bits | 0x7fc00000u);
  }
  return pairs;
}

void add_loads(std::vector<Trial>& all) {
  using cuda::Swizzle;
  all.push_back(load("tma: order of a box of rank 4", {{16, 5, 4, 3}, {8, 3, 2, 2}, {8, 1, 1, 0}}));
  Trial five = trial<ProbeConfig{.kind = Kind::load5}>("tma: order of a box of rank 5", 4096);
  set_box(five, {{16, 4, 3, 4, 3}, {8, 2, 3, 2, 2}, {8, 1, 0, 1, 1}, Swizzle::none, 5});
  all.push_back(five);
  all.push_back(load("tma: 128-byte swizzle, rank 4",
                     {{64, 16, 3, 2}, {64, 8, 2, 2}, {0, 5, 1, 0}, Swizzle::bytes_128}));
  all.push_back(load("tma: 64-byte swizzle",
                     {{64, 32, 1, 1}, {32, 20, 1, 1}, {32, 3, 0, 0}, Swizzle::bytes_64}));
  all.push_back(load("tma: 32-byte swizzle",
                     {{64, 32, 1, 1}, {16, 20, 1, 1}, {16, 3, 0, 0}, Swizzle::bytes_32}));
  all.push_back(load("tma: a box over the far edges: zeros, all its bytes",
                     {{72, 12, 2, 1}, {64, 8, 2, 1}, {64, 7, 1, 0}, Swizzle::bytes_128}));
  all.push_back(load("tma: negative coordinates",
                     {{72, 12, 2, 1}, {64, 8, 2, 1}, {-8, -3, -1, 0}, Swizzle::bytes_128}));
  all.push_back(load("tma: a box wholly outside",
                     {{64, 12, 2, 1}, {64, 8, 1, 1}, {0, 0, 2, 0}, Swizzle::bytes_128}));
  all.push_back(
      load("tma: coordinates far outside",
           {{64, 12, 2, 1}, {64, 8, 1, 1}, {0, 1 << 30, -(1 << 30), 0}, Swizzle::bytes_128}));
}

// Last, because a GPU that refused them would answer nothing after.
void add_boxes_inside_atoms(std::vector<Trial>& all) {
  using cuda::Swizzle;
  all.push_back(
      load_inside_atom("tma: 128-byte swizzle by address bits, from line 3 of an atom",
                       {{64, 16, 1, 1}, {64, 8, 1, 1}, {0, 0, 0, 0}, Swizzle::bytes_128, 4, 384}));
  all.push_back(
      load_inside_atom("tma: 64-byte swizzle by address bits, from line 1",
                       {{32, 16, 1, 1}, {32, 8, 1, 1}, {0, 0, 0, 0}, Swizzle::bytes_64, 4, 128}));
}

void add_stores(std::vector<Trial>& all) {
  const Box cut{{24, 12, 2, 1}, {16, 8, 2, 1}, {16, 7, 1, 0}};
  all.push_back(store<Kind::store>("tma: a store over the far edges", cut, DType::bf16));
  all.push_back(store<Kind::reduce>("tma: reduce.add of fp32", cut, DType::fp32));
  all.push_back(store<Kind::reduce>("tma: reduce.add of bf16", cut, DType::bf16));
}

void add_products(std::vector<Trial>& all) {
  constexpr Kind k = Kind::product;
  all.push_back(product<ProbeConfig{.kind = k}>("wgmma: K-major, 128, start inside the atom"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 128, .span_a = 32, .span_b = 64}>(
      "wgmma: K-major, A 32, B 64, N 128"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 256, .span_a = 64, .span_b = 32}>(
      "wgmma: K-major, A 64, B 32, N 256"));
  all.push_back(
      product<ProbeConfig{.kind = k, .transpose_b = 1}>("wgmma: B transposed, 128, N 64"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 256, .transpose_b = 1}>(
      "wgmma: B transposed, 128, N 256"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 128, .span_b = 64, .transpose_b = 1}>(
      "wgmma: B transposed, 64, N 128"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 128, .span_b = 32, .transpose_b = 1}>(
      "wgmma: B transposed, 32, N 128"));
  all.push_back(product<ProbeConfig{.kind = k, .transpose_a = 1}>("wgmma: A transposed, 128"));
  all.push_back(
      product<ProbeConfig{.kind = k, .span_a = 64, .transpose_a = 1}>("wgmma: A transposed, 64"));
  all.push_back(product<ProbeConfig{
                    .kind = k, .span_a = 32, .span_b = 32, .transpose_a = 1, .transpose_b = 1}>(
      "wgmma: A and B transposed, 32"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 192, .transpose_b = 1, .a_in_registers = 1}>(
      "wgmma: A in registers, B transposed, N 192"));
  all.push_back(product<ProbeConfig{.kind = k, .n = 80, .is_fp16 = true}>("wgmma: fp16, N 80"));
}

std::vector<Trial> trials() {
  std::vector<Trial> all;
  Trial parity =
      trial<ProbeConfig{.kind = Kind::parity}>("mbarrier: a fresh one, parity 1 and 0", 2);
  parity.expected = {1, 0};
  all.push_back(parity);
  add_loads(all);
  add_stores(all);
  add_products(all);
  all.push_back(trial<ProbeConfig{.kind = Kind::matrices}>(
      "stmatrix, ldmatrix, mma.sync: lanes and registers", 14 * 32));
  all.push_back(numbers<Kind::approximations>(
      "ex2, lg2, rcp, rsqrt of 0, 1, 4, infinities, subnormals",
      {0,          0, 0x80000000, 0, 0x3f800000, 0, 0x40800000, 0, 0x7f800000, 0, 0xff800000, 0,
       0x00400000, 0, 0x80400000, 0, 0xc3800000, 0, 0x43800000, 0, 0x7fc00000, 0, 0xbf800000, 0}));
  all.push_back(numbers<Kind::exact>("cvt to bf16 and fp16, max, floor", random_pairs(false)));
  all.push_back(numbers<Kind::exact>("the same of NaNs", random_pairs(true)));
  add_boxes_inside_atoms(all);
  return all;
}

// ---- the two machines

Outcome emulate(const Trial& given) {
  const emulator_tests::EmulatedDriver driver;
  Trial t = given;
  Outcome outcome;
  outcome.seen.assign(static_cast<size_t>(t.params.num_words), 0xeeeeeeee);
  alignas(16) static Words a, b;
  a = t.a, b = t.b;
  a.resize(a.size() + 4), b.resize(b.size() + 4);
  for (auto [spec, words, map] :
       {std::tuple(&t.map_a, &a, &t.params.a), {&t.map_b, &b, &t.params.b}}) {
    if (spec->dims[0] == 0) continue;
    spec->base = words->data();
    if (outcome.status = cuda::make_tensor_map(*spec, "map", *map); !outcome.status.ok())
      return outcome;
  }
  t.params.in = a.data();
  t.params.out = outcome.seen.data();
  emulator::Launch launch;
  launch.threads = 128;
  launch.shared_bytes = t.source.shared_bytes;
  launch.calm = true;
  const emulator::Report report = emulator::launch(launch, [&] { t.run(t.params); });
  if (!report.ok()) outcome.status = {StatusCode::internal, report.fault};
  if (t.sees_tensor) outcome.seen.assign(a.begin(), a.end() - 4);
  return outcome;
}

// Memory of the GPU for one trial.
struct DeviceWords {
  const cuda::Driver& api;
  void* at = nullptr;
  size_t bytes;

  DeviceWords(const cuda::Driver& driver, const Words& words)
      : api(driver), bytes(4 * words.size()) {
    if (api.memory_allocate(&at, bytes + 16) == 0 && bytes > 0)
      api.copy_to_device(at, words.data(), bytes);
  }
  ~DeviceWords() { api.memory_free(at); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;
};

Outcome run_on_gpu(const Trial& given, const cuda::Driver& api, const Device& device) {
  Trial t = given;
  Outcome outcome;
  outcome.seen.assign(static_cast<size_t>(t.params.num_words), 0xeeeeeeee);
  const DeviceWords a(api, t.a), b(api, t.b), out(api, outcome.seen);
  for (auto [spec, base, map] :
       {std::tuple(&t.map_a, a.at, &t.params.a), {&t.map_b, b.at, &t.params.b}}) {
    if (spec->dims[0] == 0) continue;
    spec->base = base;
    if (outcome.status = cuda::make_tensor_map(*spec, "map", *map); !outcome.status.ok())
      return outcome;
  }
  t.params.in = static_cast<const uint32_t*>(a.at);
  t.params.out = static_cast<uint32_t*>(out.at);
  const Result<cuda::KernelPtr> kernel = cuda::load_kernel(t.source, device, t.name);
  if (!kernel.ok()) return {kernel.status(), {}};
  cuda::Launch launch;
  launch.kernel = kernel.value().get();
  const Problem problem = Problem::parse("fwd s1").value();
  launch.problem = &problem;
  outcome.status = cuda::launch(launch, t.params, Stream{});
  if (!outcome.status.ok()) return outcome;
  outcome.status = cuda::check(api, api.context_synchronize(), "the kernel");
  if (!outcome.status.ok()) return outcome;
  if (t.sees_tensor) outcome.seen = t.a;
  const DeviceWords& result = t.sees_tensor ? a : out;
  outcome.status = cuda::check(api, api.copy_to_host(outcome.seen.data(), result.at, result.bytes),
                               "cuMemcpyDtoH");
  return outcome;
}

uint32_t digest(const Words& words) {
  uint32_t hash = 2166136261u;
  for (const uint32_t word : words) hash = (hash ^ word) * 16777619u;
  return hash;
}

// Whether they agree; prints one line.
bool report(const Trial& t, const Words& expected, const Outcome& seen) {
  if (!seen.status.ok()) {
    fmt::print("FAILED  {}: expected {:08x}, seen: {}\n", t.name, digest(expected),
               seen.status.message());
    return false;
  }
  size_t different = 0, first = 0;
  for (size_t i = expected.size(); i-- > 0;)
    if (expected[i] != seen.seen[i]) ++different, first = i;
  if (different == 0) {
    fmt::print("same    {}: expected {:08x}, seen {:08x}, {} words\n", t.name, digest(expected),
               digest(seen.seen), expected.size());
    return true;
  }
  fmt::print("DIFFERS {}: {} of {} words; word {}: expected {:08x}, seen {:08x}\n", t.name,
             different, expected.size(), first, expected[first], seen.seen[first]);
  return false;
}

int compare(std::string_view part) {
  const Result<const cuda::Driver*> api = cuda::driver();
  const Result<Device> device = Device::cuda(0);
  if (!device.ok()) fmt::print("no GPU: {}\n", device.status().message());
  int wrong = 0, count = 0;
  for (const Trial& t : trials()) {
    if (t.name.find(part) == std::string::npos) continue;
    ++count;
    Outcome emulated;
    if (t.expected.empty()) emulated = emulate(t);
    if (!emulated.status.ok()) {
      fmt::print("FAILED  {}, emulated: {}\n", t.name, emulated.status.message());
      ++wrong;
      continue;
    }
    const Words& expected = t.expected.empty() ? emulated.seen : t.expected;
    if (!device.ok()) {
      const Result<jit::CompiledKernelPtr> code = jit::compile(t.source, "sm_90a", t.name);
      fmt::print("{}: expected {:08x}; {}\n", t.name, digest(expected),
                 code.ok() ? code.value()->name : code.status().message());
      wrong += !code.ok();
      continue;
    }
    const Result<cuda::ContextScope> scope = cuda::ContextScope::of_device(*api.value(), 0);
    if (!scope.ok()) {
      fmt::print("{}\n", scope.status().message());
      return 1;
    }
    wrong += !report(t, expected, run_on_gpu(t, *api.value(), device.value()));
  }
  fmt::print("{} of {} differ or failed\n", wrong, count);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sirdar::device_tests

int main(int argc, char** argv) { return sirdar::device_tests::compare(argc > 1 ? argv[1] : ""); }
