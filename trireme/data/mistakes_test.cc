// Mistakes with datasets and iterators. Each is an error that says what is wrong and what to do.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/dataset.h"
#include "trireme/function/function.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(DataMistakes, AFunctionCalledPastTheEnd) {
  Iterator numbers = Dataset::range(3).iterator();
  auto twice = function("twice", [](Iterator& i) { return i.next() * 2; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(twice(numbers).item<int64_t>(), 2 * i);
  for (int i = 0; i < 2; ++i) {
    const Error error = error_of([&] { twice(numbers); });
    EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
    EXPECT_EQ(error.origin().object, "function 'twice'");
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("function 'twice': argument 0, iterator over range(0, 3), has no "
                                 "more elements"),
                      HasSubstr("catch END_OF_DATA"), HasSubstr("repeat()"),
                      Not(HasSubstr("next_optional"))));
  }
}

TEST(DataMistakes, AFunctionThatDrawsMoreThanAreLeft) {
  Iterator many = Dataset::range(9).iterator(), few = Dataset::range(3).iterator();
  auto add = function("add", [](const Tensor& x, Iterator& a, Iterator& b) {
    return x + a.next() + b.next() + b.next();
  });
  add(at::ones({}, at::kLong), many, few);
  EXPECT_THAT(error_text([&] { add(at::ones({}, at::kLong), many, few); }),
              AllOf(HasSubstr("function 'add': argument 2, iterator over range(0, 3), has only 1 "
                              "of the 2 elements that the step draws")));
  EXPECT_EQ(few.next().item<int64_t>(), 2) << "the element was put back";
  EXPECT_EQ(many.next().item<int64_t>(), 1) << "the element was put back";
}

TEST(DataMistakes, NextPastTheEnd) {
  Iterator numbers = Dataset::range(0).iterator();
  EXPECT_THAT(error_text([&] { numbers.next(); }),
              AllOf(StartsWith("iterator over range(0, 0): there are no more elements"),
                    HasSubstr("next_optional()")));
}

TEST(DataMistakes, AnIteratorCapturedByReference) {
  Iterator numbers = Dataset::range(3).iterator();
  auto twice = function("twice", [&] { return numbers.next() * 2; });
  EXPECT_THAT(error_text([&] { twice(); }),
              AllOf(HasSubstr("iterator over range(0, 3)"), HasSubstr("function 'twice' draws"),
                    HasSubstr("tr::Iterator&")));
}

TEST(DataMistakes, AnElementOfAnotherNumberOfTensors) {
  const Tensor x = at::ones({8, 3}), y = at::ones({8, 1});
  Iterator pairs = Dataset::from_tensors({x, y}).iterator();
  EXPECT_THAT(error_text([&] { pairs.next(); }),
              HasSubstr("its elements are (float32[3], float32[1]), which next() cannot return; "
                        "use next<2>()"));
  Iterator rows = Dataset::from_tensors({x}).iterator();
  EXPECT_THAT(error_text([&] { rows.next<2>(); }),
              HasSubstr("which next<2>() cannot return; use next()"));
}

TEST(DataMistakes, TensorsOfDifferentNumbersOfRows) {
  EXPECT_THAT(error_text([] {
                Dataset::from_tensors({at::ones({8, 3}), at::ones({5})});
              }),
              AllOf(HasSubstr("from_tensors"), HasSubstr("tensor 1 has 5 rows"),
                    HasSubstr("tensor 0 has 8")));
}

TEST(DataMistakes, ABatchOfNothing) {
  EXPECT_THAT(error_text([] { Dataset::range(3).batch(0); }),
              AllOf(HasSubstr("batch"), HasSubstr("its size is 0; it must be at least 1")));
}

TEST(DataMistakes, AMapThatReadsANumber) {
  EXPECT_THAT(error_text([] {
                Dataset::range(3).map([](const Tensor& t) { return t * t.item<int64_t>(); });
              }),
              AllOf(HasSubstr("function 'map' cannot be captured"), HasSubstr("Keep it a tensor")));
}

}  // namespace
}  // namespace trireme
