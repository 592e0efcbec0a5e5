// Whether NVIDIA's driver and compiler could be loaded, in words. Asks the libraries themselves;
// creates nothing on a GPU.
#pragma once

#include <string>

namespace sirdar::cli {

std::string gpu_presence();
std::string nvrtc_presence();

}  // namespace sirdar::cli
