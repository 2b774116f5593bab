#include "trireme/data/padded_batches.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using PaddedBatch = proto::DatasetStep::PaddedBatch;

// Gives the elements of a list.
class ListStream : public Stream<Element> {
 public:
  explicit ListStream(std::deque<Element> elements) : left_(std::move(elements)) {}

  Next<Element> next() override {
    if (left_.empty()) return std::nullopt;
    Element element = left_.front();
    left_.pop_front();
    return element;
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    for (; skipped < count && !left_.empty(); ++skipped) left_.pop_front();
    return skipped;
  }

 private:
  std::deque<Element> left_;
};

PaddedBatch padded_by(int64_t size, const std::vector<std::vector<int64_t>>& sizes = {},
                      double value = 0) {
  PaddedBatch def;
  def.set_size(size);
  def.set_value(value);
  for (const std::vector<int64_t>& each : sizes) {
    def.add_tensors()->mutable_sizes()->Add(each.begin(), each.end());
  }
  return def;
}

StreamPtr<Element> open_padded(PaddedBatch def, std::deque<Element> elements) {
  auto step = std::make_shared<DatasetStep>();
  *step->def.mutable_padded_batch() = std::move(def);
  step->number = 3;
  return open_padded_batches(std::move(step), std::make_unique<ListStream>(std::move(elements)));
}

at::Tensor only_tensor(Stream<Element>& stream) {
  return value_or_throw(stream.next()).value().at(0);
}

absl::Status padding_error(Stream<Element>& stream) {
  return stream.next().status();
}

// Elements of one tensor with 1, 2, … values.
std::deque<Element> longer_and_longer(int64_t count) {
  std::deque<Element> elements;
  for (int64_t i = 1; i <= count; ++i) elements.push_back({at::arange(1, i + 1)});
  return elements;
}

TEST(PaddedBatches, FillUpToTheLargestOfTheBatch) {
  const auto stream = open_padded(padded_by(2), longer_and_longer(5));
  EXPECT_TRUE(only_tensor(*stream).equal(at::tensor({1, 0, 1, 2}, at::kLong).view({2, 2})));
  EXPECT_TRUE(
      only_tensor(*stream).equal(at::tensor({1, 2, 3, 0, 1, 2, 3, 4}, at::kLong).view({2, 4})));
  EXPECT_TRUE(only_tensor(*stream).equal(at::arange(1, 6).view({1, 5})));
  EXPECT_EQ(value_or_throw(stream->next()), std::nullopt);
}

TEST(PaddedBatches, FillUpToGivenSizesWithAValue) {
  const auto stream = open_padded(padded_by(2, {{4}}, -1), longer_and_longer(2));
  EXPECT_TRUE(only_tensor(*stream).equal(
      at::tensor({1, -1, -1, -1, 1, 2, -1, -1}, at::kLong).view({2, 4})));
}

TEST(PaddedBatches, FillUpEveryAxis) {
  const at::Tensor wide = at::ones({1, 3}), high = at::full({2, 1}, 2.0);
  for (const auto& sizes :
       std::vector<std::vector<std::vector<int64_t>>>{{}, {{-1, 3}}, {{2, 3}}}) {
    const auto stream = open_padded(padded_by(3, sizes, 0.5), {{wide}, {high}, {at::ones({0, 0})}});
    const at::Tensor batch = only_tensor(*stream);
    const at::Tensor expected = at::full({3, 2, 3}, 0.5);
    expected[0][0].fill_(1);
    expected[1].select(1, 0).fill_(2);
    EXPECT_TRUE(batch.equal(expected)) << batch;
    EXPECT_TRUE(batch.is_contiguous());
  }
}

TEST(PaddedBatches, TensorsOfAnElementAreFilledUpIndependently) {
  const auto stream = open_padded(padded_by(2, {{-1}, {}, {2}}),
                                  {{at::arange(2), at::ones({}), at::ones({1}, at::kByte)},
                                   {at::arange(3), at::zeros({}), at::ones({2}, at::kByte)}});
  const Element batch = value_or_throw(stream->next()).value();
  EXPECT_TRUE(batch[0].equal(at::tensor({0, 1, 0, 0, 1, 2}, at::kLong).view({2, 3})));
  EXPECT_TRUE(batch[1].equal(at::tensor({1, 0}, at::kFloat)));
  EXPECT_TRUE(batch[2].equal(at::tensor({1, 0, 1, 1}, at::kByte).view({2, 2})));
}

TEST(PaddedBatches, AcceptElementsThatAreViews) {
  const at::Tensor matrix = at::arange(12).view({3, 4});
  const auto stream = open_padded(padded_by(2), {{matrix.t()}, {matrix}});
  const at::Tensor batch = only_tensor(*stream);
  EXPECT_TRUE(batch[0].narrow(1, 0, 3).equal(matrix.t()));
  EXPECT_TRUE(batch[1].narrow(0, 0, 3).equal(matrix));
}

TEST(PaddedBatches, RejectAnElementThatIsLargerThanTheGivenSize) {
  const auto stream =
      open_padded(padded_by(2, {{-1}, {2, 3}}),
                  {{at::ones({1}), at::ones({2, 3})}, {at::ones({9}), at::ones({1, 4})}});
  const absl::Status error = padding_error(*stream);
  EXPECT_EQ(error_code(error), ErrorCode::kInvalidArgument);
  for (const char* part :
       {"dataset step 3 'padded_batch'", "tensor 1", "[1, 4]", "[2, 3]", "give larger sizes"}) {
    EXPECT_THAT(describe(error), testing::HasSubstr(part));
  }
}

TEST(PaddedBatches, RejectAValueThatTheDtypeCannotHold) {
  struct Wrong {
    c10::ScalarType dtype;
    double value;
  };
  for (const auto& [dtype, value] :
       {Wrong{at::kByte, 256}, Wrong{at::kByte, -1}, Wrong{at::kLong, 0.5}, Wrong{at::kBool, 2},
        Wrong{at::kChar, -129}, Wrong{at::kLong, NAN}}) {
    const auto stream =
        open_padded(padded_by(2, {}, value), {{at::ones({1}, dtype)}, {at::ones({2}, dtype)}});
    EXPECT_THAT(describe(padding_error(*stream)), testing::HasSubstr("cannot hold the value"));
  }
  for (const auto& [dtype, value] :
       {Wrong{at::kByte, 255}, Wrong{at::kChar, -128}, Wrong{at::kBool, 1}, Wrong{at::kFloat, NAN},
        Wrong{at::kLong, -9e18}}) {
    const auto stream =
        open_padded(padded_by(2, {}, value), {{at::ones({1}, dtype)}, {at::ones({2}, dtype)}});
    EXPECT_TRUE(padding_error(*stream).ok());
  }
}

TEST(PaddedBatches, RejectABatchThatIsFarLargerThanItsElements) {
  const int64_t many = int64_t{1} << 20;
  const auto stream = open_padded(
      padded_by(2), {{at::zeros({many, 1}, at::kByte)}, {at::zeros({1, many}, at::kByte)}});
  EXPECT_EQ(error_code(padding_error(*stream)), ErrorCode::kResourceExhausted);
}

TEST(PaddedBatches, DropTheRemainderIfAsked) {
  PaddedBatch def = padded_by(2);
  def.set_drop_remainder(true);
  const auto stream = open_padded(def, longer_and_longer(3));
  only_tensor(*stream);
  EXPECT_EQ(value_or_throw(stream->next()), std::nullopt);
  EXPECT_EQ(value_or_throw(open_padded(def, longer_and_longer(3))->skip(5)), 1);
}

TEST(PaddedBatches, SkipWholeBatches) {
  const auto stream = open_padded(padded_by(2), longer_and_longer(7));
  EXPECT_EQ(value_or_throw(stream->skip(2)), 2);
  EXPECT_EQ(only_tensor(*stream).sizes(), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(value_or_throw(stream->skip(9)), 1);
}

}  // namespace
}  // namespace trireme::internal
