// Tests the programs that are derived from captured steps: whether the gradient of a table is
// pushed by rows, and the limit for tables whose gradient is not.
#include "trireme/ps/ps_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <optional>

#include "trireme/base/status.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/graph/graph.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/test_servers.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kSteppedRows = 50, kSteppedWidth = 4;
constexpr uint64_t kSteppedBytes = kSteppedRows * kSteppedWidth * 4;

class PsStepTest : public testing::Test {
 protected:
  using GradientOf = std::function<Tensor(const Tensor& table, const Tensor& ids)>;

  // Returns the gradient of a table of which rows were looked up.
  static Tensor row_gradient(const Tensor& table, const Tensor& ids) {
    return torch::autograd::grad({torch::embedding(table, ids).pow(2).sum()}, {table})[0];
  }

  // Makes a table on the servers, with a name that begins with "table".
  static Variable table_on(const ParameterServers& servers) {
    const auto scope = servers.scope();
    return Variable("table", torch::ones({kSteppedRows, kSteppedWidth}));
  }

  // Derives the program of a step that has only tables on the servers.
  static absl::StatusOr<internal::PsStep> program_of(
      const Graph& graph, uint64_t limit = std::numeric_limits<uint64_t>::max()) {
    const auto plan = internal::Access<Graph>::plan(graph);
    std::vector<bool> on_servers;
    for (const auto& variable : plan->graph->def.variables()) {
      on_servers.push_back(variable.name().starts_with("table"));
    }
    return internal::make_ps_step(*plan, on_servers, limit);
  }
  // Derives the program of a step that applies a gradient. Returns its error, or "OK".
  std::string problem_of(const GradientOf& gradient, uint64_t limit) const {
    const auto step = function("step", [&](const Tensor& ids) {
      optimizer_.apply_gradients({gradient(table_.read(), ids)});
    });
    return describe(program_of(step.graph(ids_), limit).status());
  }

  TestServers cluster_{1};
  ParameterServers servers_{cluster_.spec()};
  const Variable table_ = table_on(servers_);
  const Adam optimizer_{{table_}, {.lr = 0.1}};
  const Tensor ids_ = torch::tensor({1, 7, 7, 3});
};

TEST_F(PsStepTest, ComputesNoTensorOfTheSizeOfTheTable) {
  const auto step = function("step", [&](const Tensor& ids) {
    optimizer_.minimize(torch::embedding(table_.read(), ids).pow(2).sum(), {.clip_norm = 1});
  });
  const internal::PsStep program = value_or_throw(program_of(step.graph(ids_)));
  EXPECT_TRUE(program.pulled.empty());
  for (const auto& node : program.plan->graph->def.nodes()) {
    EXPECT_NE(node.op(), "aten::embedding_dense_backward");
  }
  ASSERT_EQ(program.rounds.size(), 1u);
  ASSERT_EQ(program.rounds[0].size(), 1u);
  EXPECT_EQ(program.rounds[0][0].value, internal::PsStep::Push::Value::kRows);
}

TEST_F(PsStepTest, AddsUpRowsOnlyForOperatorsThatNeedIt) {
  const auto operators = [&](const GradientOf& gradient) {
    const auto step = function("step", [&](const Tensor& ids) {
      optimizer_.apply_gradients({gradient(table_.read(), ids)});
    });
    const internal::PsStep program = value_or_throw(program_of(step.graph(ids_)));
    int sums = 0;
    for (const auto& node : program.plan->graph->def.nodes())
      sums += node.op() == "trireme::sum_rows";
    return sums;
  };
  EXPECT_EQ(operators([](const Tensor& table, const Tensor& ids) {
              return row_gradient(table, ids) + row_gradient(table, ids + 1);
            }),
            0);
  EXPECT_EQ(operators([](const Tensor& table, const Tensor& ids) {
              const Tensor sum = row_gradient(table, ids) + row_gradient(table, ids + 1);
              return sum / (sum.norm() + sum.abs().sum());
            }),
            1);
}

TEST_F(PsStepTest, RejectsLargeWholeGradients) {
  const GradientOf shifted = [](const Tensor& table, const Tensor& ids) {
    return row_gradient(table, ids) * 2 + 1;
  };
  EXPECT_EQ(problem_of(row_gradient, 100), "OK");
  EXPECT_EQ(problem_of(shifted, kSteppedBytes), "OK");
  EXPECT_THAT(
      problem_of(shifted, kSteppedBytes - 1),
      AllOf(HasSubstr("variable 'table"), HasSubstr("function 'step' reads only rows of it"),
            HasSubstr("operator 'aten::add."), HasSubstr("largest_whole_gradient")));
}

TEST_F(PsStepTest, NamesTheOperatorThatNeedsAllRows) {
  EXPECT_THAT(problem_of([](const Tensor& table,
                            const Tensor& ids) { return row_gradient(table, ids).cos() * 2; },
                         100),
              HasSubstr("operator 'aten::cos'"));
  EXPECT_THAT(problem_of(
                  [](const Tensor& table, const Tensor& ids) {
                    return row_gradient(table, ids).clamp(0.1, 1);  // zero becomes 0.1
                  },
                  100),
              HasSubstr("operator 'aten::clamp'"));
  // The gradient has another shape in between.
  EXPECT_THAT(problem_of(
                  [](const Tensor& table, const Tensor& ids) {
                    const Tensor flat = row_gradient(table, ids).view({-1}) * 2;
                    return flat.view({kSteppedRows, kSteppedWidth});
                  },
                  100),
              HasSubstr("operator 'aten::view'"));
  EXPECT_THAT(problem_of(
                  [](const Tensor& table, const Tensor& ids) {
                    const Tensor rows =
                        torch::embedding(table, ids, -1, /*scale_grad_by_freq=*/true);
                    return torch::autograd::grad({rows.pow(2).sum()}, {table})[0] * 2;
                  },
                  100),
              HasSubstr("operator 'aten::embedding_dense_backward'"));
  const auto returns = function("returns", [&](const Tensor& ids) {
    const Tensor gradient = row_gradient(table_.read(), ids);
    optimizer_.apply_gradients({gradient});
    return gradient;
  });
  EXPECT_THAT(describe(program_of(returns.graph(ids_), 100).status()),
              HasSubstr("it returns the gradient"));
}

TEST_F(PsStepTest, ATableThatIsPulledWholeMayBePushedWhole) {
  EXPECT_EQ(
      problem_of([](const Tensor& table,
                    const Tensor& ids) { return row_gradient(table, ids) + table.detach() * 0.01; },
                 100),
      "OK");
}

TEST_F(PsStepTest, TheLimitIsAnOption) {
  const ParameterServers strict(cluster_.spec(), {.largest_whole_gradient = 100});
  const Variable table = table_on(strict);
  const Sgd optimizer({table}, {.lr = 0.1});
  const auto step = function("step", [&](const Tensor& ids) {
    optimizer.apply_gradients({row_gradient(table.read(), ids) + 1});
  });
  EXPECT_THAT(error_text([&] { step(ids_); }),
              AllOf(HasSubstr("variable 'table"), HasSubstr("operator 'aten::add.")));
}

}  // namespace
}  // namespace trireme
