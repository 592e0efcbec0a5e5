#include <sirdar/adapters/openmp.hpp>

#include "adapters/adapter_test.h"

namespace sirdar::test {
namespace {

TEST(OpenMpAdapter, RunsEveryItemOnceInASlotOfItsOwn) {
  expect_every_item_once(adapters::openmp());
}

TEST(OpenMpAdapter, GivesTheBitsOfTheOwnPool) { expect_same_bits_as_own_pool(adapters::openmp()); }

}  // namespace
}  // namespace sirdar::test
