#include "trireme/train/worker_agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

using testing::HasSubstr;

// Worker 1 of two. Worker 0 gives the same number whenever it is asked for its value.
class SecondWorker final : public WorkerGroup {
 public:
  explicit SecondWorker(int64_t of_first) : of_first_(of_first) {}

  int workers() const override { return 2; }
  int worker() const override { return 1; }
  at::Tensor sum(const at::Tensor& value, const std::string&) override { return value; }
  at::Tensor first(const at::Tensor& value, const std::string&) override {
    return at::full_like(value, of_first_);
  }
  at::Tensor concatenate(const at::Tensor& value, const std::string&) override { return value; }
  std::shared_ptr<const GraphData> connect(const Plan&) override { return nullptr; }
  void fail(const std::string& message) override { failure = message; }

  std::string failure;

 private:
  const int64_t of_first_;
};

TEST(WorkerAgreement, ALengthThatNoTextHasEndsTheGroup) {
  for (const int64_t length : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    SecondWorker workers(length);
    const Error error = error_of([&] {
      WorkerAgreement(&workers).decide([] { return std::string(); }, "name of the checkpoint");
    });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.message(), HasSubstr("worker 0 says that the name of the checkpoint has "));
    EXPECT_EQ(workers.failure, error.message());
  }
}

}  // namespace
}  // namespace trireme::internal
