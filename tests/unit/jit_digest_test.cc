// SHA-256 against the examples that its publisher gives, and over every way of cutting a text.
#include <gtest/gtest.h>

#include "jit/digest.h"

namespace sirdar::jit {
namespace {

TEST(Digest, AgreesWithThePublishedExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmno"
                   "pqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, DoesNotDependOnHowTheTextIsCut) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string whole = sha256(text.substr(0, length));
    for (const size_t cut : {size_t{1}, size_t{55}, size_t{64}, size_t{65}, size_t{127}}) {
      Sha256 digest;
      for (size_t at = 0; at < length; at += cut)
        digest.update(std::string_view(text).substr(at, std::min(cut, length - at)));
      ASSERT_EQ(digest.hex(), whole) << length << " in pieces of " << cut;
    }
  }
}

TEST(Digest, OfFieldsKnowsWhereTheyEnd) {
  Sha256 a, b;
  a.update_field("ab"), a.update_field("c");
  b.update_field("a"), b.update_field("bc");
  EXPECT_NE(a.hex(), b.hex());
}

}  // namespace
}  // namespace sirdar::jit
