#include <sirdar/adapters/tbb.hpp>

#include "adapters/adapter_test.h"

namespace sirdar::test {
namespace {

TEST(TbbAdapter, RunsEveryItemOnceInASlotOfItsOwn) { expect_every_item_once(adapters::tbb()); }

TEST(TbbAdapter, GivesTheBitsOfTheOwnPool) { expect_same_bits_as_own_pool(adapters::tbb()); }

}  // namespace
}  // namespace sirdar::test
