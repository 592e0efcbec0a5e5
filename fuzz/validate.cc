// A problem string, then bytes that distort its tensors: validation says yes or no and reads
// nothing that is not there. What it accepts stays inside the memory it was given.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/expected.h"
#include "core/memory.h"
#include "core/validate.h"

namespace {

using namespace sirdar;

// Integer tensors point here; their contents are the input's.
constexpr int64_t kCells = 4096;
alignas(64) int32_t cells[kCells];

struct Bytes {
  const uint8_t* data;
  size_t size;
  template <class T>
  T take() {
    T value{};
    const size_t count = std::min(size, sizeof(T));
    std::memcpy(&value, data, count);
    data += count;
    size -= count;
    return value;
  }
};

// The described shape, now and then distorted.
TensorView described(const Expected& expected, Bytes& bytes) {
  TensorView view;
  view.dtype = expected.dtype;
  view.rank = static_cast<int>(expected.axes.size());
  uint64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const Axis& described_axis = expected.axes[static_cast<size_t>(axis)];
    view.shape[axis] = described_axis.any ? bytes.take<uint8_t>() % 5 : described_axis.size;
    view.stride[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(view.shape[axis], 1));
  }
  view.data = cells;
  const auto change = bytes.take<uint8_t>();
  const int axis = change % 4;
  if (change == 255) view.data = nullptr;
  if (change >> 4 == 1) view.shape[axis] = bytes.take<int64_t>();
  if (change >> 4 == 2) view.stride[axis] = bytes.take<int64_t>();
  if (change >> 4 == 3) view.rank = bytes.take<int8_t>();
  if (change >> 4 == 4) view.dtype = static_cast<DType>(bytes.take<uint8_t>());
  if (change >> 4 == 5) view.data = reinterpret_cast<void*>(bytes.take<uintptr_t>());
  return view;
}

// Contents are read: integer views that are wanted must lie inside the cells.
bool inside_cells(const TensorView& view) {
  const ByteRange range = byte_range(view);
  const auto base = static_cast<Wide>(reinterpret_cast<uintptr_t>(view.data));
  const auto first = static_cast<Wide>(reinterpret_cast<uintptr_t>(cells));
  return base + range.begin >= first && base + range.end <= first + Wide{sizeof cells};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* zero = static_cast<const uint8_t*>(std::memchr(data, 0, size));
  if (zero == nullptr) return 0;
  const auto length = static_cast<size_t>(zero - data);
  const auto parsed = Problem::parse({reinterpret_cast<const char*>(data), length});
  if (!parsed.ok() || !parsed.value().validate().ok()) return 0;
  const Problem& problem = parsed.value();
  Bytes bytes{zero + 1, size - length - 1};
  for (int64_t i = 0; i < 64; ++i) cells[i] = bytes.take<int16_t>();

  Args args;
  for (const ExpressionTensor& tensor : problem.tensors) args.tensors.push_back({tensor.name, {}});
  for (const std::string& name : problem.scalars) args.scalars.emplace_back(name, 0.0);
  for (const ExpressionTensor& tensor : problem.tensors)
    if (tensor.needs_grad) args.dtensors.push_back({tensor.name, {}});
  bool is_safe = true;
  for (const Expected& expected : expected_tensors(problem, args)) {
    if (!expected.is_wanted && bytes.take<uint8_t>() != 1) continue;
    auto& view = const_cast<TensorView&>(*expected.view);
    view = described(expected, bytes);
    if (expected.dtype == DType::int32 && view.present() && view.rank >= 0 &&
        view.rank <= kMaxRank && !inside_cells(view))
      is_safe = false;  // a caller's lie about its own memory cannot be seen from here
  }
  const DeviceKind kind = is_safe ? DeviceKind::cpu : DeviceKind::cuda;
  const Status status = validate(problem, args, kind);
  if (!status.ok() && (status.message().empty() || status.rule().empty())) std::abort();
  return 0;
}
