// What fmt's headers leave to its library, for builds that compile each of our sources once and for
// all: without it every source would bring the whole of fmt, which is two thirds of the time to
// compile.
#include <fmt/format-inl.h>

namespace fmt::detail {
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
}  // namespace fmt::detail
