// The forward problems of the corpus.
#include "conformance/conformance.h"

namespace sirdar::test {
namespace {

class Forward : public ::testing::TestWithParam<CorpusLine> {};

TEST_P(Forward, Conforms) { expect_conforms(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Corpus, Forward,
                         ::testing::ValuesIn(corpus(SIRDAR_TEST_DIR "/conformance/corpus", "fwd")),
                         named_after_line);

}  // namespace
}  // namespace sirdar::test
