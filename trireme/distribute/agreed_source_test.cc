#include "trireme/distribute/agreed_source.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"
#include "trireme/data/used_numbers.h"
#include "trireme/function/draws.h"
#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

using testing::HasSubstr;

// This worker as one of two, of which the other draws as many elements as this one, or none.
class TwoWorkers final : public WorkerGroup {
 public:
  explicit TwoWorkers(bool other_has_data) : other_has_data_(other_has_data) {}

  int workers() const override { return 2; }
  int worker() const override { return 0; }
  at::Tensor sum(const at::Tensor& value, const std::string&) override {
    ++sums;
    return value + (other_has_data_ ? 1 : 0);
  }
  at::Tensor first(const at::Tensor& value, const std::string&) override { return value; }
  at::Tensor concatenate(const at::Tensor& value, const std::string&) override {
    return at::cat({value, description});
  }
  std::shared_ptr<const GraphData> connect(const Plan&) override { return nullptr; }
  void fail(const std::string&) override {}

  int sums = 0;
  at::Tensor description = at::empty({0}, at::kLong);  // that the other worker gives

 private:
  const bool other_has_data_;
};

uint64_t used(const Iterator& iterator) {
  const IteratorPosition position = Access<Iterator>::position(iterator);
  return position.next - position.returned.size();
}

TEST(AgreedSource, AnElementThatIsPutBackCountsAsUnusedAndIsDrawnAgainWithoutTheOthers) {
  TwoWorkers workers(false);
  const Iterator own = Dataset::range(5).iterator();
  const Iterator agreed = agreed_iterator(own, workers);
  const auto source = Access<Iterator>::source(agreed);
  source->draw();
  NumberedElement second = source->draw(), third = source->draw();
  EXPECT_EQ(used(own), 3);
  source->put_back(std::move(third));
  source->put_back(std::move(second));
  EXPECT_EQ(used(own), 1);
  EXPECT_EQ(source->draw().element[0].item<int64_t>(), 1);
  EXPECT_EQ(source->draw().element[0].item<int64_t>(), 2);
  EXPECT_EQ(workers.sums, 3);
  EXPECT_EQ(source->draw().element[0].item<int64_t>(), 3);
  EXPECT_EQ(workers.sums, 4);
  EXPECT_EQ(used(own), 4);
}

TEST(AgreedSource, ElementsThatWerePutBackEndWithTheirEpoch) {
  TwoWorkers workers(true);
  const Iterator own = Dataset::range(2).batch(1).iterator();
  const Iterator agreed = agreed_iterator(own, workers);
  const auto source = Access<Iterator>::source(agreed);
  source->draw();
  NumberedElement second = source->draw(), empty = source->draw();
  EXPECT_EQ(empty.element[0].size(0), 0);
  source->put_back(std::move(empty));
  source->put_back(std::move(second));
  Access<Iterator>::restore(own, {.seed = 1});
  for (int64_t row : {0, 1}) EXPECT_EQ(source->draw().element[0].item<int64_t>(), row);
  EXPECT_EQ(source->draw().element[0].size(0), 0);
  EXPECT_EQ(workers.sums, 6);
}

TEST(AgreedSource, ADescriptionThatMakesNoSenseIsAnError) {
  const int64_t dtype = static_cast<int64_t>(at::kFloat);
  for (const std::vector<int64_t>& description : std::vector<std::vector<int64_t>>{
           {}, {1}, {-1}, {1, dtype}, {1, dtype, 2, 3}, {1, 1000, 1, 3}, {1, dtype, 1, -3}}) {
    TwoWorkers workers(true);
    workers.description = at::tensor(description, at::kLong);
    const Iterator agreed = agreed_iterator(Dataset::range(0).iterator(), workers);
    EXPECT_THAT(error_of([&] { Access<Iterator>::source(agreed)->draw(); }).message(),
                HasSubstr("described its elements"));
  }
  TwoWorkers workers(true);
  workers.description = at::tensor(std::vector<int64_t>{1, dtype, 2, 7, 3}, at::kLong);
  const Iterator agreed = agreed_iterator(Dataset::range(0).iterator(), workers);
  EXPECT_EQ(Access<Iterator>::source(agreed)->draw().element[0].sizes(), (at::IntArrayRef{0, 3}));
}

}  // namespace
}  // namespace trireme::internal
