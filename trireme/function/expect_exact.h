#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "trireme/capture/eager_mode.h"
#include "trireme/capture/self_check.h"

// For tests that compare captured functions with plain code.
namespace trireme {

// Runs a program as plain code and with captured functions, and expects the same results of both.
inline void expect_exact(const std::function<std::vector<torch::Tensor>()>& program) {
  run_eagerly(true);
  const std::vector<torch::Tensor> eager = program();
  run_eagerly(false);
  const std::vector<torch::Tensor> captured = program();
  ASSERT_EQ(eager.size(), captured.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    EXPECT_TRUE(internal::nearly_equal(eager[i], captured[i])) << "result " << i << "\neager\n"
                                                               << eager[i] << "\ncaptured\n"
                                                               << captured[i];
  }
}

}  // namespace trireme
