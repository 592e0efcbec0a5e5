// The CUDA driver: a table of its functions, loaded at run time, with its types declared here.
// Tests install a table of their own.
#pragma once

#include <sirdar/status.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sirdar::cuda {

// The driver's handles and codes. A CuResult is 0 for success; a CuDevice is an ordinal.
using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuLibrary = struct CuLibraryObject*;
using CuKernel = struct CuKernelObject*;
using CuFunction = struct CuFunctionObject*;
using CuEvent = struct CuEventObject*;

// Values of the driver's enumerations that are used.
namespace attribute {
inline constexpr int kNumSms = 16, kL2Bytes = 38, kMajor = 75, kMinor = 76,
                     kSmemOptin = 97;                                             // of a device
inline constexpr int kMaxDynamicShared = 8;                                       // of a kernel
inline constexpr int kCooperative = 2, kClusterDimension = 4, kProgrammatic = 6;  // of a launch
}  // namespace attribute

// An attribute of a launch: a number that says which, and up to 64 bytes.
struct LaunchAttribute {
  int id = 0;
  int pad = 0;
  union Value {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int is_cooperative, is_programmatic;
  } value = {};
};
struct LaunchRecord {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CuStream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

struct Driver {
  CuResult (*init)(unsigned flags);
  CuResult (*driver_version)(int* version);  // 1000 * major + 10 * minor
  CuResult (*error_name)(CuResult, const char** text);
  CuResult (*error_text)(CuResult, const char** text);
  CuResult (*device_count)(int* count);
  CuResult (*device_get)(CuDevice*, int ordinal);
  CuResult (*device_name)(char* name, int size, CuDevice);
  CuResult (*device_attribute)(int* value, int attribute, CuDevice);
  CuResult (*context_get)(CuContext*);
  CuResult (*context_push)(CuContext);
  CuResult (*context_pop)(CuContext*);
  CuResult (*context_device)(CuDevice*);
  CuResult (*primary_retain)(CuContext*, CuDevice);
  CuResult (*primary_release)(CuDevice);
  CuResult (*stream_context)(CuStream, CuContext*);
  CuResult (*library_load)(CuLibrary*, const void* code, int* jit_options, void** jit_values,
                           unsigned num_jit, int* options, void** values, unsigned num);
  CuResult (*library_unload)(CuLibrary);
  CuResult (*library_kernel)(CuKernel*, CuLibrary, const char* name);
  CuResult (*kernel_function)(CuFunction*, CuKernel);
  CuResult (*kernel_set)(int attribute, int value, CuKernel, CuDevice);
  CuResult (*launch)(const LaunchRecord*, CuFunction, void** params, void** extra);
  CuResult (*context_synchronize)();
  CuResult (*event_create)(CuEvent*, unsigned flags);
  CuResult (*event_destroy)(CuEvent);
  CuResult (*event_record)(CuEvent, CuStream);
  CuResult (*event_elapsed)(float* milliseconds, CuEvent begin, CuEvent end);
  CuResult (*memory_allocate)(void** address, size_t bytes);
  CuResult (*memory_free)(void* address);
  CuResult (*copy_to_device)(void* device, const void* host, size_t bytes);
  CuResult (*copy_to_host)(void* host, const void* device, size_t bytes);
  CuResult (*memset32)(void* address, unsigned value, size_t count, CuStream);
  CuResult (*tensor_map_encode)(void* map, int dtype, uint32_t rank, void* base,
                                const uint64_t* dims, const uint64_t* stride_bytes,
                                const uint32_t* box, const uint32_t* steps, int interleave,
                                int swizzle, int l2_promotion, int fill);
};

// The first driver that knows the functions above and the machine code of sm_90a.
inline constexpr int kMinDriverVersion = 12000;

// The table of libcuda.so.1, initialised; or why there is none. The answer is found once.
Result<const Driver*> driver();

// Stands in for the real driver until null is given. For tests: not while anything runs.
void install_driver(const Driver* table);

// "CUDA_ERROR_INVALID_VALUE (invalid argument)"; errors after which a context is unusable say so.
std::string describe(const Driver& driver, CuResult error);

// Ok, or a status that says what was being done: "cuDeviceGet for device 3". Lack of memory has its
// own code.
Status check(const Driver& driver, CuResult error, std::string_view what);

}  // namespace sirdar::cuda
