/* A libcuda.so.1 of one H200 that does nothing: for what the command does before and after kernels.
   Device memory is the host's; a run takes a quarter of a millisecond. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void* Handle;

int cuInit(unsigned flags) { return (void)flags, 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorName(int error, const char** text) { return (void)error, *text = "CUDA_ERROR", 0; }
int cuGetErrorString(int error, const char** text) { return (void)error, *text = "an error", 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int size, int device) {
  return (void)device, strncpy(name, "NVIDIA H200", (size_t)size), 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 16 ? 132 : attribute == 38 ? 50 << 20 : attribute == 75 ? 9 : 0;
  if (attribute == 97) *value = 232448;
  return 0;
}
int cuCtxGetCurrent(Handle* context) { return *context = (Handle)1, 0; }
int cuCtxPushCurrent_v2(Handle context) { return (void)context, 0; }
int cuCtxPopCurrent_v2(Handle* context) { return *context = (Handle)1, 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuDevicePrimaryCtxRetain(Handle* context, int device) {
  return (void)device, *context = (Handle)1, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, 0; }
int cuStreamGetCtx(Handle stream, Handle* context) { return (void)stream, *context = (Handle)1, 0; }
int cuLibraryLoadData(Handle* library, const void* code, int* a, void** b, unsigned c, int* d,
                      void** e, unsigned f) {
  return (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, *library = (Handle)1, 0;
}
int cuLibraryUnload(Handle library) { return (void)library, 0; }
int cuLibraryGetKernel(Handle* kernel, Handle library, const char* name) {
  return (void)library, (void)name, *kernel = (Handle)1, 0;
}
int cuKernelGetFunction(Handle* function, Handle kernel) { return *function = kernel, 0; }
int cuKernelSetAttribute(int attribute, int value, Handle kernel, int device) {
  return (void)attribute, (void)value, (void)kernel, (void)device, 0;
}
int cuLaunchKernelEx(const void* config, Handle function, void** params, void** extra) {
  return (void)config, (void)function, (void)params, (void)extra, 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuEventCreate(Handle* event, unsigned flags) { return (void)flags, *event = (Handle)1, 0; }
int cuEventDestroy_v2(Handle event) { return (void)event, 0; }
int cuEventRecord(Handle event, Handle stream) { return (void)event, (void)stream, 0; }
int cuEventElapsedTime(float* ms, Handle begin, Handle end) {
  return (void)begin, (void)end, *ms = 0.25f, 0;
}
int cuMemAlloc_v2(void** address, size_t bytes) {
  return posix_memalign(address, 256, bytes) != 0 ? 2 : 0;
}
int cuMemFree_v2(void* address) { return free(address), 0; }
int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes), 0; }
int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes), 0; }
int cuMemsetD32Async(void* address, unsigned value, size_t count, Handle stream) {
  return (void)stream, (void)address, (void)value, (void)count, 0;
}
int cuTensorMapEncodeTiled(void* map, int dtype, uint32_t rank, void* base, const uint64_t* dims,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                           int interleave, int swizzle, int promotion, int fill) {
  (void)dtype, (void)rank, (void)base, (void)dims, (void)strides, (void)box, (void)steps;
  (void)interleave, (void)swizzle, (void)promotion, (void)fill;
  return memset(map, 0, 128), 0;
}
