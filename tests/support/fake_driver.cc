#include "support/fake_driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sirdar::testing {
namespace {

FakeDriver* fake = nullptr;

// Notes the call; the error it is to fail with, or 0.
int asked(const char* name) {
  fake->calls.emplace_back(name);
  const auto it = fake->errors.find(name);
  return it == fake->errors.end() ? 0 : it->second;
}

template <class T>
T handle(uintptr_t number) {
  return reinterpret_cast<T>(number);
}

int device_attribute(int* value, int which, cuda::CuDevice) {
  const std::map<int, int> facts = {{cuda::attribute::kNumSms, 132},
                                    {cuda::attribute::kL2Bytes, 50 << 20},
                                    {cuda::attribute::kMajor, fake->major},
                                    {cuda::attribute::kMinor, 0},
                                    {cuda::attribute::kSmemOptin, 232448}};
  *value = facts.at(which);
  return asked("device_attribute");
}

int launch(const cuda::LaunchRecord* record, cuda::CuFunction function, void** params, void**) {
  const int error = asked("launch");
  if (error != 0) return error;
  const auto* bytes = static_cast<const unsigned char*>(params[0]);
  fake->launches.push_back({*record,
                            {record->attributes, record->attributes + record->num_attributes},
                            function,
                            {bytes, bytes + fake->param_bytes},
                            fake->stack.empty() ? nullptr : fake->stack.back()});
  return 0;
}

int tensor_map_encode(void* map, int dtype, uint32_t rank, void* base, const uint64_t* dims,
                      const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                      int interleave, int swizzle, int l2_promotion, int fill) {
  std::memset(map, 0x5a, 128);
  fake->tensor_maps.push_back({dtype,
                               interleave,
                               swizzle,
                               l2_promotion,
                               fill,
                               base,
                               {dims, dims + rank},
                               {strides, strides + rank - 1},
                               {box, box + rank},
                               {steps, steps + rank}});
  return asked("tensor_map_encode");
}

void fill_contexts(cuda::Driver& t) {
  t.context_get = [](cuda::CuContext* context) {
    *context = fake->stack.empty() ? nullptr : fake->stack.back();
    return asked("context_get");
  };
  t.context_push = [](cuda::CuContext context) {
    const int error = asked("context_push");
    if (error == 0) fake->stack.push_back(context);
    return error;
  };
  t.context_pop = [](cuda::CuContext* context) {
    *context = fake->stack.back();
    fake->stack.pop_back();
    return asked("context_pop");
  };
  t.context_device = [](cuda::CuDevice* device) {
    *device = static_cast<int>(reinterpret_cast<uintptr_t>(fake->stack.back()) & 0xff);
    return asked("context_device");
  };
  t.primary_retain = [](cuda::CuContext* context, cuda::CuDevice device) {
    *context = FakeDriver::context(device);
    const int error = asked("primary_retain");
    if (error == 0) ++fake->num_retained;
    return error;
  };
  t.primary_release = [](cuda::CuDevice) {
    --fake->num_retained;
    return asked("primary_release");
  };
  t.stream_context = [](cuda::CuStream stream, cuda::CuContext* context) {
    const auto it = fake->streams.find(stream);
    if (it == fake->streams.end()) return 400;
    *context = it->second;
    return asked("stream_context");
  };
}

void fill_kernels(cuda::Driver& t) {
  t.library_load = [](cuda::CuLibrary* library, const void*, int*, void**, unsigned, int*, void**,
                      unsigned) {
    const int error = asked("library_load");
    *library = error == 0 ? handle<cuda::CuLibrary>(0x100) : nullptr;
    if (error == 0) ++fake->num_libraries;
    return error;
  };
  t.library_unload = [](cuda::CuLibrary) {
    --fake->num_libraries;
    return asked("library_unload");
  };
  t.library_kernel = [](cuda::CuKernel* kernel, cuda::CuLibrary, const char*) {
    *kernel = handle<cuda::CuKernel>(0x200);
    return asked("library_kernel");
  };
  t.kernel_function = [](cuda::CuFunction* function, cuda::CuKernel) {
    *function = handle<cuda::CuFunction>(0x300);
    return asked("kernel_function");
  };
  t.kernel_set = [](int which, int value, cuda::CuKernel, cuda::CuDevice) {
    if (which == cuda::attribute::kMaxDynamicShared) fake->dynamic_shared_bytes = value;
    return asked("kernel_set");
  };
  t.launch = launch;
  t.tensor_map_encode = tensor_map_encode;
}

void fill_memory(cuda::Driver& t) {
  t.context_synchronize = [] { return asked("context_synchronize"); };
  t.event_create = [](cuda::CuEvent* event, unsigned) {
    const int error = asked("event_create");
    *event = error == 0 ? handle<cuda::CuEvent>(0x400u + fake->num_events) : nullptr;
    if (error == 0) ++fake->num_events;
    return error;
  };
  t.event_destroy = [](cuda::CuEvent) {
    --fake->num_events;
    return asked("event_destroy");
  };
  t.event_record = [](cuda::CuEvent, cuda::CuStream) { return asked("event_record"); };
  t.event_elapsed = [](float* milliseconds, cuda::CuEvent, cuda::CuEvent) {
    *milliseconds = fake->elapsed_ms;
    return asked("event_elapsed");
  };
  t.memory_allocate = [](void** address, size_t bytes) {
    const int error = asked("memory_allocate");
    *address = error == 0 ? std::malloc(bytes) : nullptr;
    if (error == 0) ++fake->num_allocations;
    return error;
  };
  t.memory_free = [](void* address) {
    --fake->num_allocations;
    std::free(address);
    return asked("memory_free");
  };
  t.copy_to_device = [](void* device, const void* host, size_t bytes) {
    std::memcpy(device, host, bytes);
    return asked("copy_to_device");
  };
  t.copy_to_host = [](void* host, const void* device, size_t bytes) {
    std::memcpy(host, device, bytes);
    return asked("copy_to_host");
  };
  t.memset32 = [](void* address, unsigned value, size_t count, cuda::CuStream) {
    std::fill_n(static_cast<unsigned*>(address), count, value);
    return asked("memset32");
  };
}

}  // namespace

cuda::CuContext FakeDriver::context(int device) {
  return handle<cuda::CuContext>(0x1000u + static_cast<unsigned>(device));
}

FakeDriver::FakeDriver() : table_{} {
  fake = this;
  table_.init = [](unsigned) { return asked("init"); };
  table_.driver_version = [](int* value) {
    *value = fake->version;
    return asked("driver_version");
  };
  table_.error_name = [](int error, const char** text) {
    *text = error == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                           : "CUDA_ERROR_SOMETHING";
    return error == 12345 ? 1 : 0;
  };
  table_.error_text = [](int, const char** text) {
    *text = "what it means";
    return 0;
  };
  table_.device_count = [](int* count) {
    *count = fake->num_devices;
    return asked("device_count");
  };
  table_.device_get = [](cuda::CuDevice* device, int ordinal) {
    *device = ordinal;
    return asked("device_get");
  };
  table_.device_name = [](char* name, int size, cuda::CuDevice) {
    std::strncpy(name, "NVIDIA H200", static_cast<size_t>(size));
    return asked("device_name");
  };
  table_.device_attribute = device_attribute;
  fill_contexts(table_);
  fill_kernels(table_);
  fill_memory(table_);
  cuda::install_driver(&table_);
}

FakeDriver::~FakeDriver() {
  cuda::install_driver(nullptr);
  fake = nullptr;
}

}  // namespace sirdar::testing
