// Whether the address sanitizer watches: what it can find needs fewer cases than what only numbers
// show, and each takes many times as long.
#pragma once

namespace sirdar::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kIsSanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace sirdar::test
