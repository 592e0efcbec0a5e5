// What of CUDA is here, in words. Creates nothing on a GPU.
#pragma once

#include <string>

namespace sirdar::cli {

std::string describe_gpus();   // the driver and its GPUs, or why there is none
std::string describe_nvrtc();  // version and file, or why there is none
std::string describe_cache();  // where compiled kernels are kept, and how many

}  // namespace sirdar::cli
