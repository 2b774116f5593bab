#include "trireme/data/text.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Text, IsTheSameAfterATensor) {
  const std::vector<std::string> texts = {"oar", "", "trireme!", "Ἀθῆν"};
  const at::Tensor tensor = text_tensor(texts, 12);
  EXPECT_EQ(tensor.sizes().vec(), (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(tensor.scalar_type(), at::kByte);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(text_of(tensor[static_cast<int64_t>(i)]), texts[i]);
  }
}

TEST(Text, MayFillTheWholeWidth) {
  EXPECT_EQ(text_of(text_tensor({"oars"}, 4)[0]), "oars");
}

TEST(Text, OfATensorWithGapsIsReadByItsStrides) {
  EXPECT_EQ(text_of(text_tensor({"ab", "cd"}, 2).t()[1]), "bd");
}

TEST(Text, RejectsTextsThatAreTooLongAndListsThem) {
  std::vector<std::string> texts(14, "much too long");
  texts.emplace_back("short");
  EXPECT_THAT(error_text([&] { text_tensor(texts, 5); }),
              AllOf(HasSubstr("14 of 15 texts have more than 5 bytes: 'much too long', "),
                    HasSubstr(" and 4 more; raise bytes")));
}

TEST(Text, RejectsZeroBytes) {
  EXPECT_THAT(error_text([] { text_tensor({std::string("a\0b", 3)}, 5); }),
              HasSubstr("zero byte, which text cannot have: 'a\\x00"));
}

TEST(Text, RejectsAWidthOfNothing) {
  EXPECT_THAT(error_text([] { text_tensor({}, 0); }), HasSubstr("bytes is 0"));
}

TEST(Text, OfATensorThatIsNotTextIsAnError) {
  EXPECT_THAT(error_text([] { text_of(at::ones({3})); }), HasSubstr("the tensor is (float32[3])"));
  EXPECT_THAT(error_text([] { text_of(at::ones({2, 3}, at::kByte)); }), HasSubstr("(uint8[2, 3])"));
  EXPECT_THAT(error_text([] { text_of(at::Tensor()); }), HasSubstr("undefined"));
}

}  // namespace
}  // namespace trireme
