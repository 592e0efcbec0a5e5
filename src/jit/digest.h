// SHA-256 [FIPS 180-4], for names that are contents.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sirdar::jit {

class Sha256 {
 public:
  void update(std::string_view bytes);
  // Its length first, so that ("ab", "c") and ("a", "bc") differ.
  void update_field(std::string_view bytes);
  // 64 hexadecimal digits of all that was given. Nothing may follow.
  std::string hex();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  uint64_t length_ = 0;  // bytes so far
};

std::string sha256(std::string_view bytes);

}  // namespace sirdar::jit
