// Programs that change tensors and modes outside of a captured function between its calls. Each
// must give what plain code gives.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/function/expect_exact.h"
#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

TEST(OutsideTensorTest, ReassignedIsNoticed) {
  expect_exact([] {
    Tensor mask = torch::ones({3});
    const auto step = function("step", [&](const Tensor& x) { return x * mask; });
    Tensors results{step(torch::ones({3}))};
    mask = torch::zeros({3});
    results.push_back(step(torch::ones({3})));
    return results;
  });
}

TEST(OutsideTensorTest, WrittenThroughDataIsNoticed) {
  expect_exact([] {
    torch::manual_seed(1);
    torch::nn::Linear teacher(2, 1), student(2, 1);
    for (Tensor& parameter : teacher->parameters()) parameter.set_requires_grad(false);
    track(student);
    const auto step = function("step", [&](const Tensor& x) { return teacher(x); });
    Tensors results{step(torch::ones({1, 2}))};
    for (size_t i = 0; i < 2; ++i) {
      teacher->parameters()[i].data().mul_(0.0).add_(student->parameters()[i].data());
    }
    results.push_back(step(torch::ones({1, 2})));
    return results;
  });
}

TEST(OutsideTensorTest, RefilledBufferIsNoticed) {
  expect_exact([] {
    std::vector<float> buffer{1, 2, 3};
    const Tensor batch = torch::from_blob(buffer.data(), {3});
    const auto step = function("step", [&](const Tensor& x) { return x * batch; });
    Tensors results{step(torch::ones({3}))};
    buffer = {7, 8, 9};
    results.push_back(step(torch::ones({3})));
    return results;
  });
}

TEST(OutsideTensorTest, AnotherSliceOfTheSameDataIsNoticed) {
  expect_exact([] {
    const Tensor data = torch::arange(12).to(torch::kFloat).reshape({4, 3});
    Tensor batch;
    const auto step = function("step", [&](const Tensor& x) { return x * batch; });
    Tensors results;
    for (int i = 0; i < 4; ++i) {
      batch = data.narrow(0, i, 1);
      results.push_back(step(torch::ones({1, 3})));
    }
    return results;
  });
}

TEST(OutsideTensorTest, MadeOfAPointerInTheFunctionIsRefused) {
  std::vector<float> buffer{1, 2, 3};
  const auto step =
      function("step", [&](const Tensor& x) { return x * torch::from_blob(buffer.data(), {3}); });
  EXPECT_THAT(error_text([&] { step(torch::ones({3})); }), HasSubstr("from_blob()"));
}

TEST(OutsideTensorTest, ChangedInInferenceModeIsNoticed) {
  Tensor constant;
  {
    const c10::InferenceMode inference;
    constant = torch::ones({2});
  }
  const auto step = function("step", [&](const Tensor& x) {
    const torch::NoGradGuard no_gradients;
    return x * constant;
  });
  step(torch::ones({2}));
  {
    const c10::InferenceMode inference;
    constant.fill_(9);
  }
  EXPECT_TRUE(torch::equal(step(torch::ones({2})), torch::full({2}, 9.0)));
}

TEST(OutsideTensorTest, UnchangedIsNotCapturedAgain) {
  const Tensor mask = torch::rand({1 << 16}).gt(0.5).to(torch::kFloat);
  const auto step = function("step", [&](const Tensor& x) { return x * mask * 2; });
  for (int i = 0; i < 4; ++i) step(torch::ones({1 << 16}));
  EXPECT_EQ(step.captures(), 1);
}

TEST(OutsideTensorTest, ConjugatedOrNegatedIsExact) {
  for (const bool check : {true, false}) {
    expect_exact([check] {
      const Tensor conjugated =
          torch::view_as_complex(torch::arange(4).to(torch::kFloat).view({2, 2})).conj();
      const Tensor negated = torch::imag(conjugated);  // a lazily negated view
      const auto step =
          function("step",
                   [&](const Tensor& x) {
                     return Tensors{torch::imag(x * conjugated) * 1, torch::real(x) * negated};
                   },
                   {.check_capture = check});
      return step(torch::complex(torch::ones({2}), torch::zeros({2})));
    });
  }
}

TEST(ArgumentTest, ConjugatedOrNegatedIsExact) {
  expect_exact([] {
    const auto step = function("step", [](const Tensor& x, const Tensor& y) {
      return Tensors{torch::view_as_real(x * 2), y * 2};
    });
    const Tensor plain = torch::view_as_complex(torch::arange(4).to(torch::kFloat).view({2, 2}));
    Tensors results = step(plain.resolve_conj(), torch::imag(plain).clone());
    for (const Tensor& result : step(plain.conj(), torch::imag(plain.conj()))) {
      results.push_back(result);
    }
    return results;
  });
}

TEST(ArgumentTest, SliceKeepsItsOffset) {
  expect_exact([] {
    const auto step = function("step", [](const Tensor& x) {
      return x.as_strided({2, 2}, {1, 1}, x.storage_offset()) * 1;
    });
    const Tensor all = torch::arange(16).to(torch::kFloat);
    return Tensors{step(all.narrow(0, 8, 4)), step(all.narrow(0, 2, 4)), step(all.narrow(0, 0, 4))};
  });
}

TEST(ArgumentTest, StridesOfDimensionsOfSizeOneCount) {
  expect_exact([] {
    torch::manual_seed(5);
    torch::nn::Conv2d net(torch::nn::Conv2dOptions(1, 4, 3));
    track(net);
    const auto step =
        function("step", [&](const Tensor& x) { return net(x).as_strided({8}, {1}) * 1; });
    const Tensor x = torch::randn({2, 1, 8, 8});
    return Tensors{step(x), step(x.as_strided({2, 1, 8, 8}, {64, 1, 8, 1}))};
  });
}

class DefaultDtype {
 public:
  explicit DefaultDtype(caffe2::TypeMeta dtype) : before_(torch::get_default_dtype()) {
    torch::set_default_dtype(dtype);
  }
  ~DefaultDtype() { torch::set_default_dtype(before_); }

 private:
  const caffe2::TypeMeta before_;
};

TEST(DefaultDtypeTest, IsPartOfTheSignature) {
  expect_exact([] {
    const auto step = function("step", [](const Tensor& x) { return torch::full({2}, 0.1) + x; });
    const Tensor x = torch::zeros({2}, torch::kBFloat16);
    Tensors results{step(x)};
    {
      const DefaultDtype wide(caffe2::TypeMeta::Make<double>());
      results.push_back(step(x));
    }
    const DefaultDtype narrow(caffe2::TypeMeta::Make<c10::BFloat16>());
    results.push_back(step(x));
    return results;
  });
}

TEST(DefaultDtypeTest, IsWrittenIntoFactories) {
  const DefaultDtype wide(caffe2::TypeMeta::Make<double>());
  const auto step = function("step", [](const Tensor& x) { return torch::full({1}, 0.1) + x; });
  // 7 is Double.
  EXPECT_THAT(step.graph(torch::zeros({1})).explain(), HasSubstr("aten::full([1], 0.1, 7,"));
}

class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(AutocastTest, AroundAFunctionIsPartOfItsSignature) {
  for (const bool first : {true, false}) {
    expect_exact([first] {
      torch::manual_seed(1);
      torch::nn::Linear net(16, 4);
      track(net);
      const auto step = function("step", [&](const Tensor& x) { return net(x); });
      const Tensor x = torch::randn({2, 16});
      Tensors results;
      for (const bool on : {first, !first, first}) {
        std::optional<Autocast> autocast;
        if (on) autocast.emplace();
        results.push_back(step(x));
      }
      return results;
    });
  }
}

TEST(AutocastTest, InsideOfAFunctionIsExact) {
  expect_exact([] {
    torch::manual_seed(1);
    torch::nn::Linear net(16, 4);
    track(net);
    const auto step = function("step", [&](const Tensor& x) {
      Tensor y;
      {
        const Autocast autocast;
        y = net(x);
      }
      return y.to(torch::kFloat).pow(2).sum();
    });
    const Tensor x = torch::randn({2, 16});
    return Tensors{step(x), step(x * 2)};
  });
}

}  // namespace
}  // namespace trireme
