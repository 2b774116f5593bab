// Runs small programs, one for each way in which a capture can go wrong. Each must either replay
// exactly as it runs eagerly, over steps with changing arguments, or be refused with a message that
// says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/capture/self_check.h"
#include "trireme/function/function.h"
#include "trireme/function/trap_program.h"

namespace trireme {
namespace {

Tensor argument(int step) {
  torch::Generator generator = at::detail::createCPUGenerator(100 + step);
  return torch::randn({4, 3}, generator, torch::kFloat);
}

Tensor labels(int step) {
  torch::Generator generator = at::detail::createCPUGenerator(200 + step);
  return torch::randint(0, 3, {4}, generator, torch::kLong);
}

std::vector<Program> programs() {
  std::vector<Program> all = memory_programs();
  for (const auto& more : {operator_programs(), gradient_programs(), state_programs()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

class Trap : public testing::TestWithParam<Program> {};

TEST_P(Trap, ReplaysEqualOrIsRefused) {
  constexpr int kSteps = 4;
  const auto run = [](const Step& step) {
    auto captured = function(
        "trap", [step](const Tensor& x, const Tensor& y) -> Tensors { return step(x, y); });
    std::vector<Tensors> results;
    for (int i = 0; i < kSteps; ++i) {
      Tensors tensors = captured(argument(i), labels(i));
      for (Tensor& tensor : tensors) {
        if (tensor.defined()) tensor = tensor.clone();
      }
      results.push_back(std::move(tensors));
    }
    return results;
  };
  if (!GetParam().refusal.empty()) {
    try {
      run(GetParam().make());
      FAIL() << "was not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().refusal));
    }
    return;
  }
  run_eagerly(true);
  const std::vector<Tensors> eager = run(GetParam().make());
  run_eagerly(false);
  const std::vector<Tensors> replayed = run(GetParam().make());
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_EQ(eager[i].size(), replayed[i].size());
    for (size_t j = 0; j < eager[i].size(); ++j) {
      EXPECT_TRUE(internal::nearly_equal(eager[i][j], replayed[i][j]))
          << "step " << i << " result " << j << "\neager\n"
          << eager[i][j] << "\nreplayed\n"
          << replayed[i][j];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Trap, testing::ValuesIn(programs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trireme
