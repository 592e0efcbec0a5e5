// Documents in the Hopper backward, on the emulated machine.
#include <gtest/gtest.h>

#include <limits>

#include "core/elements.h"
#include "emulator/support/backward_run.h"
#include "emulator/support/extent.h"

namespace sirdar::emulator_tests {
namespace {

// Ids that come back, of one token, of queries or keys alone, and that end within tiles.
TEST(EmulatedBackwardDocuments, OfAnyIds) {
  const auto id_of = [](int64_t i) {
    return i < 90 ? 5 : i == 90 ? 1000 : i < 160 ? i % 3 - 1 : i < 200 ? 5 : i < 330 ? -7 : i / 40;
  };
  const auto edit = [&](check::Inputs& inputs) {
    for (const TensorView& view : {inputs.args().document_q, inputs.args().document_k}) {
      for_each_element(view, [&](int64_t offset, int64_t index) {
        store_element(view, offset, static_cast<double>(id_of(index % view.shape[1])));
      });
    }
    const TensorView& ids = inputs.args().document_k;
    store_element(ids, 20 * ids.stride[1], 77);  // seen by nobody
    const TensorView& k = inputs.args().k;
    for (int64_t column = 0; column < k.shape[3]; ++column) {
      store_element(k, 20 * k.stride[1] + column * k.stride[3],
                    std::numeric_limits<double>::quiet_NaN());
    }
    inputs.refresh_saved();
  };
  for (const char* text : {"bwd b1 sq390 sk450 hq2 hkv1 d128 bf16 document causal",
                           "bwd b1 sq300 sk260 h2 d128 bf16 document"}) {
    for (uint64_t seed = 3; seed < (runs_everything() ? 6 : 4); ++seed)
      expect_right(text, seed, seed % 2 == 0 ? 16 : 2, edit, Lost::something);
  }
}

}  // namespace
}  // namespace sirdar::emulator_tests
