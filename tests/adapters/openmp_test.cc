#include <sirdar/adapters/openmp.hpp>

#include <dlfcn.h>

#include <string>

#include "adapters/adapter_test.h"

#include <sirdar/sirdar.h>

namespace sirdar::test {
namespace {

TEST(OpenMpAdapter, RunsEveryItemOnceInASlotOfItsOwn) {
  expect_every_item_once(adapters::openmp());
}

TEST(OpenMpAdapter, GivesTheBitsOfTheOwnPool) { expect_same_bits_as_own_pool(adapters::openmp()); }

// The runtime that this program is linked with, found by its file as a binding would.
Executor found_by_file() {
  Dl_info where{};
  EXPECT_NE(dladdr(reinterpret_cast<void*>(&omp_get_max_threads), &where), 0);
  sirdar_executor executor{};
  EXPECT_EQ(sirdar_executor_init(&executor, sizeof executor), SIRDAR_STATUS_ok);
  EXPECT_EQ(sirdar_openmp_executor(where.dli_fname, &executor), SIRDAR_STATUS_ok)
      << sirdar_status_message();
  return {executor.parallel_for, executor.context};
}

TEST(OpenMpRuntime, RunsEveryItemOnceInASlotOfItsOwn) { expect_every_item_once(found_by_file()); }

TEST(OpenMpRuntime, GivesTheBitsOfTheOwnPool) { expect_same_bits_as_own_pool(found_by_file()); }

TEST(OpenMpRuntime, IsRefusedWhereItIsNotLoaded) {
  sirdar_executor executor{};
  ASSERT_EQ(sirdar_executor_init(&executor, sizeof executor), SIRDAR_STATUS_ok);
  EXPECT_EQ(sirdar_openmp_executor("libnowhere.so", &executor), SIRDAR_STATUS_invalid_argument);
  EXPECT_EQ(std::string(sirdar_status_message()).rfind("path: libnowhere.so", 0), 0u);
  EXPECT_EQ(executor.parallel_for, nullptr);
  EXPECT_EQ(sirdar_openmp_executor(nullptr, &executor), SIRDAR_STATUS_invalid_argument);
}

}  // namespace
}  // namespace sirdar::test
