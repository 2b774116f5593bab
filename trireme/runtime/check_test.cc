// check() names the step, the operator and the cause of a difference from eager code. Tests with
// optimizers, iterators and sessions are in tests/integration/check_test.cc.
#include "trireme/runtime/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "trireme/function/variable.h"
#include "trireme/runtime/difference_locator.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;

TEST(Check, ReportsAFrozenCounter) {
  int calls = 0;
  const auto step = function("step",
                             [&](const Tensor& x) {
                               ++calls;
                               return (x + 1) * static_cast<double>(calls);
                             },
                             {.check_capture = false});
  const CheckReport report = check(step, {}, torch::ones({3}));
  EXPECT_FALSE(report.equal);
  EXPECT_EQ(report.step, 0);
  EXPECT_EQ(report.steps_compared, 1);
  EXPECT_EQ(report.object, "result 0");
  EXPECT_THAT(report.op, HasSubstr("operator 'aten::mul"));
  EXPECT_THAT(report.cause, HasSubstr("the program has changed since the function was captured"));
  EXPECT_THAT(report.cause, HasSubstr("must be a tensor that is an argument or a variable"));
  // The capture saw 1, the eager step 2.
  EXPECT_DOUBLE_EQ(report.difference, 0.5);
  EXPECT_THAT(report.to_string(), HasSubstr("step 0 differs from eager code: result 0"));
}

TEST(Check, ReportsTheStepAtWhichABranchChanges) {
  int calls = 0;
  const Variable sum("sum", torch::zeros({3}));
  const auto step = function("step",
                             [&](const Tensor& x) {
                               const bool early = ++calls < 4;
                               sum.assign_add(early ? x.sin() : x.exp());
                             },
                             {.check_capture = false});
  const CheckReport report = check(step, {}, torch::ones({3}));
  EXPECT_EQ(report.step, 2) << report.to_string();
  EXPECT_EQ(report.steps_compared, 3);
  EXPECT_EQ(report.object, "variable 'sum'");
  EXPECT_THAT(report.op, HasSubstr("operator 'aten::sin' (node 0"));
  EXPECT_TRUE(torch::equal(sum.read(), torch::zeros({3})));
}

TEST(Check, SaysWhatItCannotLocate) {
  int calls = 0;
  const auto step =
      function("step", [&](const Tensor& x) { return ++calls == 4 ? x.exp() : x.sin(); },
               {.check_capture = false});
  const CheckReport report = check(step, {}, torch::ones({3}));
  EXPECT_EQ(report.step, 2) << report.to_string();
  EXPECT_THAT(report.op, HasSubstr("operator 'aten::sin'"));
  EXPECT_THAT(report.cause, HasSubstr("did not occur again"));
}

TEST(Check, NamesTheUserOfATensorThatWasReplaced) {
  int calls = 0;
  const auto step =
      function("step",
               [&](const Tensor& x) {
                 return x.sin() + torch::tensor(std::vector<float>{1, static_cast<float>(++calls)});
               },
               {.check_capture = false});
  const CheckReport report = check(step, {}, torch::ones({2}));
  EXPECT_FALSE(report.equal);
  EXPECT_THAT(report.op, HasSubstr("operator 'aten::add")) << report.to_string();
}

TEST(Check, NamesTheFirstOperatorWhoseResultDiffers) {
  const Tensor x = torch::rand({3});
  const auto step = function("step", [](const Tensor& x) {
    x.cos();  // not used, so it is not in the graph
    return x.sin().mul(2).exp().sum();
  });
  using Steps = internal::Access<Function<Tensor(const Tensor&)>>;
  const internal::DifferenceCause found =
      internal::locate_difference({.restart = [] {},
                                   .run_eagerly =
                                       [&] {
                                         x.cos();
                                         x.sin().mul(3).exp().sum();
                                       },
                                   .preview = [&] { return Steps::preview(step, x); },
                                   .call = [&] { return Steps::call(step, x); },
                                   .variables = [](const auto&) { return std::vector<Tensor>(); }},
                                  {.result = 0}, 1e-5, /*in_session=*/false);
  EXPECT_THAT(found.op, HasSubstr("operator 'aten::mul"));
  EXPECT_THAT(found.cause, HasSubstr("the same graph"));
}

TEST(Check, ErrorsOfTheCapturePassThrough) {
  const auto step = function("step", [](const Tensor& x) { return x * x.sum().item<double>(); });
  EXPECT_THAT(error_text([&] { check(step, {}, torch::ones({3})); }),
              HasSubstr("cannot be captured"));
  const auto good = function("good", [](const Tensor& x) { return x * 2; });
  EXPECT_THAT(error_text([&] { check(good, {.steps = 0}, torch::ones({3})); }),
              HasSubstr("function 'good': check() was asked for 0 steps"));
}

TEST(RelativeDifference, IsTheNormOfTheDifferenceOverThatOfTheSecond) {
  using internal::relative_difference;
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor b = torch::tensor({3.0, 4.0});
  EXPECT_DOUBLE_EQ(relative_difference(torch::tensor({3.0, 4.5}), b), 0.1);
  EXPECT_EQ(relative_difference(b, b), 0);
  EXPECT_EQ(relative_difference(torch::zeros({2}), torch::zeros({2})), 0);
  EXPECT_EQ(relative_difference(torch::ones({2}), torch::zeros({2})), infinity);
  EXPECT_EQ(relative_difference(torch::ones({2}), torch::ones({3})), infinity);
  EXPECT_EQ(relative_difference(torch::ones({2}), torch::ones({2}, torch::kLong)), infinity);
  EXPECT_EQ(relative_difference({}, {}), 0);
  EXPECT_EQ(relative_difference(b, {}), infinity);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor odd = torch::tensor({nan, infinity, 2.0});
  EXPECT_EQ(relative_difference(odd, odd.clone()), 0);
  EXPECT_EQ(relative_difference(torch::ones({3}, torch::kDouble), odd), infinity);
  EXPECT_DOUBLE_EQ(relative_difference(torch::tensor({nan, infinity, 1.0}), odd), 0.5);
}

}  // namespace
}  // namespace trireme
