#include "compile/machine_code.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace sirdar::test {
namespace {

// Low 12 bits of an instruction's 128: what it is. One operation has a code for each form of
// operand.
constexpr uint64_t kMultiplyAdd[] = {0x223, 0x423, 0x823, 0xc23};
constexpr uint64_t kExponential[] = {0x308};  // MUFU
constexpr uint64_t kMaximum[] = {0x209, 0x809};
constexpr uint64_t kVote[] = {0x806};
constexpr uint64_t kWarpgroup[] = {0x9c5};
constexpr uint64_t kProduct[] = {0x9f0, 0xdf0};  // HGMMA, A from shared memory and from registers
constexpr int kWaitBit =
    47;  // of the lower half: a WARPGROUP that waits (DEPBAR) and not one that arrives
constexpr int kReuseBit = 58;  // of the upper half; four flags

struct Instruction {
  uint64_t low, high;
  template <size_t kCount>
  bool is(const uint64_t (&codes)[kCount]) const {
    return std::find(codes, codes + kCount, low & 0xfff) != codes + kCount;
  }
};

bool is_wait(const Instruction& one) {
  return one.is(kWarpgroup) && ((one.low >> kWaitBit) & 1) != 0;
}

template <class T>
T read(std::string_view bytes, size_t at) {
  T value{};
  if (at + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The bytes of a section of a 64-bit ELF file.
std::string_view section(std::string_view elf, const std::string& wanted) {
  if (!elf.starts_with("\x7f"
                       "ELF"))
    return {};
  const auto table = read<uint64_t>(elf, 0x28);
  const auto entry_bytes = read<uint16_t>(elf, 0x3a), count = read<uint16_t>(elf, 0x3c),
             names = read<uint16_t>(elf, 0x3e);
  const auto header = [&](size_t n) { return table + n * entry_bytes; };
  const auto name_begin = read<uint64_t>(elf, header(names) + 0x18);
  for (size_t n = 0; n < count; ++n) {
    const size_t name = name_begin + read<uint32_t>(elf, header(n));
    if (name >= elf.size() || elf.substr(name, wanted.size() + 1) != wanted + '\0') continue;
    return elf.substr(std::min<size_t>(read<uint64_t>(elf, header(n) + 0x18), elf.size()),
                      read<uint64_t>(elf, header(n) + 0x20));
  }
  return {};
}

std::vector<Instruction> instructions_of(std::string_view cubin, std::string_view kernel) {
  const std::string_view code = section(cubin, ".text." + std::string(kernel));
  std::vector<Instruction> instructions;
  for (size_t at = 0; at + 16 <= code.size(); at += 16) {
    instructions.push_back({read<uint64_t>(code, at), read<uint64_t>(code, at + 8)});
  }
  return instructions;
}

}  // namespace

int num_products(std::string_view cubin, std::string_view kernel) {
  int count = 0;
  for (const Instruction& one : instructions_of(cubin, kernel)) count += one.is(kProduct);
  return count;
}

std::vector<GuardedLoop> guarded_loops(std::string_view cubin, std::string_view kernel) {
  constexpr size_t kReach = 240;  // instructions that a loop's exponentials lie within
  constexpr int kFewestExponentials = 28;
  const std::vector<Instruction> instructions = instructions_of(cubin, kernel);
  std::vector<GuardedLoop> loops;
  for (size_t end = 0; end < instructions.size(); ++end) {
    if (!instructions[end].is(kVote)) continue;
    size_t begin = end > kReach ? end - kReach : 0;
    for (size_t n = begin; n < end; ++n) {
      if (instructions[n].is(kMaximum)) begin = n;
    }
    GuardedLoop loop;
    for (size_t n = begin; n < end; ++n) {
      loop.num_exponentials += instructions[n].is(kExponential);
      loop.num_early_waits += loop.num_exponentials > 0 && is_wait(instructions[n]);
      if (!instructions[n].is(kMultiplyAdd)) continue;
      ++loop.num_multiply_adds;
      loop.num_reusing += ((instructions[n].high >> kReuseBit) & 15) != 0;
    }
    if (loop.num_exponentials >= kFewestExponentials) loops.push_back(loop);
  }
  return loops;
}

}  // namespace sirdar::test
