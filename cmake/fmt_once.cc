// What fmt leaves to its library when it is not headers alone.
#include <fmt/format-inl.h>

namespace fmt::detail {
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
}  // namespace fmt::detail
