// The backward problems of the corpus.
#include "conformance/conformance.h"

namespace sirdar::test {
namespace {

class Backward : public ::testing::TestWithParam<CorpusLine> {};

TEST_P(Backward, Conforms) { expect_conforms(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Corpus, Backward,
                         ::testing::ValuesIn(corpus(SIRDAR_TEST_DIR "/conformance/corpus", "bwd")),
                         named_after_line);

}  // namespace
}  // namespace sirdar::test
