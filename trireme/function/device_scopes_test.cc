// Device scopes in functions that run without a session, and outside of functions. These tests run
// with and without an accelerator, so they name GPUs that no machine has. A warning is logged once
// in a process, so each test names one of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "trireme/capture/device_scope.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/placement/local_devices.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using torch::Tensor;

std::string log_of(const std::function<void()>& work) {
  testing::internal::CaptureStderr();
  work();
  return testing::internal::GetCapturedStderr();
}

// Returns the warning of a missing device, and the device that is used instead.
std::string missing(const std::string& device) {
  return "device '" + device + "', named by scope '" + device + "', does not exist; using '" +
         (internal::accelerator_count() > 0 ? "/gpu:0" : "/cpu:0") + "' (LibTorch finds ";
}

TEST(DeviceScopes, AFunctionWarnsOnceOfAMissingDeviceAndExplainsWhatItUses) {
  const auto f = function("doubled", [](const Tensor& x) {
    const DeviceScope on("GPU:901");
    return x * 2;
  });
  const Tensor x = torch::ones({2});
  EXPECT_THAT(f.graph(x).explain(),
              AllOf(HasSubstr(internal::accelerator_count() > 0 ? "on /gpu:0: " : "on /cpu:0: "),
                    HasSubstr("'/gpu:901'; there is no /gpu:901"), Not(HasSubstr("on /gpu:901"))));
  EXPECT_THAT(log_of([&] { EXPECT_EQ(f(x).sum().item<float>(), 4); }),
              HasSubstr("function 'doubled': " + missing("/gpu:901")));
  EXPECT_THAT(log_of([&] { f(x); }), IsEmpty());
}

TEST(DeviceScopes, AFunctionIsCapturedForTheScopesAroundItsCall) {
  const auto f = function("scoped", [](const Tensor& x) { return x * 2; });
  const Tensor x = torch::ones({2});
  f(x);
  {
    const DeviceScope on("/cpu:1");
    EXPECT_THAT(f.graph(x).explain(), HasSubstr("on /cpu:1: '/cpu:1'"));
    EXPECT_EQ(f(x).sum().item<float>(), 4);
  }
  EXPECT_THAT(f.graph(x).explain(), Not(HasSubstr("/cpu:1")));
  EXPECT_EQ(f.captures(), 2);
}

TEST(DeviceScopes, AVariableOfTheProgramIsExplainedWhereItIs) {
  const DeviceScope on("/gpu:0");
  const Variable v("placed", torch::ones({2}));
  EXPECT_EQ(v.device(), "/gpu:0");
  const auto f = function("read", [&] { return v.read() + 1; });
  EXPECT_THAT(f.graph().explain(),
              HasSubstr("on /cpu:0: '/gpu:0'; without a session it is in the program's memory"));
}

TEST(DeviceScopes, AReadOutsideOfFunctionsWarnsOnceOfAMissingDevice) {
  const Variable v("v", torch::ones({2}));
  const DeviceScope on("/gpu:902");
  EXPECT_THAT(log_of([&] { EXPECT_EQ((v + v).sum().item<float>(), 4); }),
              HasSubstr(missing("/gpu:902")));
  EXPECT_THAT(log_of([&] { v * 2; }), IsEmpty());
}

TEST(DeviceScopes, AnOperatorOutsideOfFunctionsWarnsOnceOfAMissingDevice) {
  const Tensor x = torch::ones({2});
  const DeviceScope on("/gpu:903");
  EXPECT_THAT(log_of([&] { EXPECT_EQ((x + x).sum().item<float>(), 4); }),
              HasSubstr(missing("/gpu:903")));
  EXPECT_THAT(log_of([&] { x * 2; }), IsEmpty());
}

TEST(DeviceScopes, ScopesThatHoldAreNotMentioned) {
  EXPECT_THAT(log_of([] {
                const DeviceScope on("CPU:0");
                const Variable v("v", torch::ones({2}));
                EXPECT_EQ(v.device(), "/cpu:0");
                (v * torch::ones({2})).sum().backward();
              }),
              IsEmpty());
  // A scope does not place the making and copying of tensors.
  EXPECT_THAT(log_of([] {
                const DeviceScope on("/gpu:904");
                const Variable v("v", torch::ones({2}).to(torch::kDouble).clone());
              }),
              IsEmpty());
}

}  // namespace
}  // namespace trireme
