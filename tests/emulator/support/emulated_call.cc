#include "emulator/support/emulated_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "cuda/modified_params.h"
#include "cuda/sm90/forward/arguments.h"
#include "cuda/sm90/forward/last_round.h"
#include "cuda/sm90/forward/modified.h"
#include "cuda/sm90/forward/pack.h"
#include "cuda/sm90/forward/split.h"
#include "emulator/support/emulated_driver.h"
#include "emulator/support/emulated_kernels.h"

namespace sirdar::emulator_tests {
namespace {

template <class T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

// With gaps behind rows and heads that TMA can step over, at an address that it takes.
test::Tensor like(const test::Tensor& from) {
  const test::Shape& shape = from.shape();
  test::Shape stride(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;)
    stride[axis - 1] = (stride[axis] * std::max<int64_t>(shape[axis], 1) + 15) / 8 * 8;
  test::Tensor tensor;
  for (int64_t offset = 0; offset < 8; ++offset) {
    tensor = test::Tensor(from.view().dtype, shape, stride, offset);
    if (reinterpret_cast<uintptr_t>(tensor.view().data) % 16 == 0) break;
  }
  for (int64_t i = 0; i < from.size(); ++i) tensor.set_flat(i, from.flat(i));
  return tensor;
}

}  // namespace

EmulatedCall::EmulatedCall(const std::string& problem, const std::function<void(test::Call&)>& edit)
    : kernels_(value_or_throw(forward_kernels(problem))), call_(test::with_knobs(problem).first) {
  call_.q = like(call_.q), call_.k = like(call_.k), call_.v = like(call_.v);
  call_.out = like(call_.out);
  if (kernels_.config.num_stages_bias > 0) call_.bias = like(call_.bias);
  if (edit) edit(call_);
  const expression::DeviceModification modification = expression::modification_of(kernels_.problem);
  const sm90::CoverView shape =
      sm90::cover_view(kernels_.problem, kernels_.config, modification, nullptr);
  const int blocks_m = sm90::num_blocks_m(kernels_.problem, kernels_.config);
  const bool shares = kernels_.config.shares_last_round;
  num_zeros_ = shares ? sm90::kFlagBytes : sm90::kCounterBytes;
  workspace_.resize(num_zeros_ + sm90::cover_bytes(shape, kernels_.config, blocks_m) +
                    sm90::parts_bytes(kernels_.problem, kernels_.config) +
                    sm90::slot_bytes(kernels_.config));
  const EmulatedDriver driver;
  int* counter = shares || sm90::draws_tickets(kernels_.config)
                     ? reinterpret_cast<int*>(workspace_.data())
                     : nullptr;
  params_ =
      value_or_throw(sm90::make_params(kernels_.problem, kernels_.config, call_.args(), counter));
  params_.cover = sm90::cover_view(kernels_.problem, kernels_.config, modification,
                                   workspace_.data() + num_zeros_);
  params_.parts =
      sm90::parts_view(kernels_.problem, kernels_.config, workspace_.data() + num_zeros_);
  expected_ = check::expected_outputs(kernels_.problem, call_.args());
}

emulator::Overlapping EmulatedCall::launch_of(const KernelSource& source, int64_t grid,
                                              const emulator::Launch& as,
                                              const void* params) const {
  const std::string key = key_of(source);
  const auto kernel = std::find_if(kEmulatedKernels.begin(), kEmulatedKernels.end(),
                                   [&](const EmulatedKernel& one) { return one.key == key; });
  if (kernel == kEmulatedKernels.end())
    throw std::runtime_error("no kernel of problems.txt is this one");
  emulator::Launch launch = as;
  launch.grid.x = static_cast<unsigned>(grid);
  launch.threads = source.threads;
  launch.shared_bytes = source.shared_bytes;
  launch.resident = static_cast<int>(std::min<int64_t>(grid, 4));
  launch.misalignment = source.shared_bytes > 0 ? static_cast<unsigned>(as.seed % 3 * 16) : 0;
  return {launch, [kernel, params] { kernel->run(params); }};
}

emulator::Report EmulatedCall::run(uint64_t seed, int blocks) {
  emulator::Launch as;
  as.seed = seed;
  return run(as, blocks);
}

emulator::Report EmulatedCall::run(const emulator::Launch& as, int blocks) {
  const auto poison = std::numeric_limits<double>::quiet_NaN();
  for (test::Tensor* output : {&call_.out, &call_.lse, &call_.max_logit})
    if (output->present()) output->fill(poison);
  std::fill(workspace_.begin(), workspace_.end(), std::byte{0xff});  // the caller's holds anything
  std::fill_n(workspace_.begin(), num_zeros_, std::byte{0});
  sm90::ForwardParams params = params_;
  blocks = std::min(blocks, params_.num_items);
  if (kernels_.config.shares_last_round)
    sm90::share_last_round(kernels_.config, blocks, workspace_.data() + num_zeros_, params);
  const expression::DeviceModification modification = expression::modification_of(kernels_.problem);
  const std::vector<std::byte> bytes =
      value_or_throw(cuda::modified_params(params, modification, kernels_.problem, call_.args()));
  emulator::Launch plain;
  plain.seed = as.seed;
  if (kernels_.config.has_mask_mod) {
    const int64_t grid = sm90::num_cover_blocks(params_.cover, params_.num_blocks_m);
    const emulator::Overlapping cover =
        launch_of(kernels_.sources.front(), grid, plain, bytes.data());
    const emulator::Report report = emulator::launch(cover.launch, cover.kernel);
    if (!report.ok()) return report;
  }
  const emulator::Overlapping forward =
      launch_of(kernels_.sources.back(), blocks, as, bytes.data());
  emulator::Report report;
  if (is_split(kernels_.config)) {
    const int64_t grid = sm90::num_combine_blocks(kernels_.config, params_);
    report =
        emulator::launch(forward, launch_of(kernels_.sources.front(), grid, plain, bytes.data()));
  } else {
    report = emulator::launch(forward.launch, forward.kernel);
  }
  if (report.ok()) report.fault = wrong();
  return report;
}

std::string EmulatedCall::wrong() const {
  for (const check::Expected& expected : expected_) {
    const check::Deviation deviation = check::compare(expected);
    if (!deviation.ok)
      return fmt::format("{} is {}, expected {} (error {} times what is allowed)", deviation.where,
                         deviation.actual, deviation.expected, deviation.ratio);
  }
  for (const test::Tensor* tensor : {&call_.out, &call_.lse, &call_.max_logit})
    if (tensor->present() && !tensor->gaps_intact()) return "something was written between rows";
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (params_.counter && !std::all_of(workspace_.begin(), workspace_.begin() + num_zeros_, is_zero))
    return "the counters are not zero again";
  return "";
}

}  // namespace sirdar::emulator_tests
