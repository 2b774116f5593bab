// A server has the default dtype that LibTorch starts with, whatever the program has set. Steps
// give what they give in the program, or are rejected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "trireme/function/function.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

class DefaultDtypeOfAProgram : public testing::Test {
 protected:
  DefaultDtypeOfAProgram() { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~DefaultDtypeOfAProgram() override { torch::set_default_dtype(caffe2::TypeMeta::Make<float>()); }

  ProcessCluster cluster_{{{.workers = 1, .ps = 0}}};
  Session session_{cluster_.target({"worker", 0})};
};

TEST_F(DefaultDtypeOfAProgram, IsThatOfNewTensorsOnAServer) {
  const auto third =
      function("third", [](const Tensor& x) { return torch::full({1}, 1.0 / 3) + x; });
  const Tensor x = torch::zeros({1}, torch::kFloat), here = third(x),
               there = session_.run(third, x);
  EXPECT_EQ(there.scalar_type(), torch::kDouble);
  EXPECT_EQ(there.item<double>(), here.item<double>());
}

TEST_F(DefaultDtypeOfAProgram, IsNeededToDivideIntegers) {
  const auto half = function("half", [](const Tensor& x) { return x / 2; });
  const Tensor x = torch::ones({1}, torch::kLong);
  EXPECT_EQ(half(x).item<double>(), 0.5);
  EXPECT_THAT(
      error_text([&] { session_.run(half, x); }),
      AllOf(HasSubstr("default dtype Double"), HasSubstr("Convert the integers with to()")));
  const auto converted =
      function("converted", [](const Tensor& x) { return x.to(torch::kDouble) / 2; });
  EXPECT_EQ(session_.run(converted, x).item<double>(), 0.5);
}

}  // namespace
}  // namespace trireme
