#include <sirdar/status.hpp>

namespace sirdar {

std::string_view name_of(StatusCode code) {
  switch (code) {
#define SIRDAR_ROW(name, value, meaning) \
  case StatusCode::name:                 \
    return #name;
    SIRDAR_STATUS_CODES(SIRDAR_ROW)
#undef SIRDAR_ROW
  }
  return "unknown";
}

}  // namespace sirdar
