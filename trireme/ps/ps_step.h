#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/graph/plan.h"
#include "trireme/ps/update.h"

namespace trireme::internal {

// A captured step whose variables live on parameter servers, as a worker runs it: pull what it
// reads, run the operators, push what it changes. The operators that only change a variable are
// left out, since the servers do that. Plain data that follows from the graph: every
// task that has the graph makes the same program.
//
// - A variable that is read before it is changed is pulled once, at the start; a read after a
//   change sees the change, in the worker's copy.
// - `assign_add`, `assign_sub` and `assign` push their argument, `minimize` the gradient. Any other
//   write (batch norm's statistics) is pushed as the difference that it made.
// - A variable that is used by `embedding`, `index_select` and `_embedding_bag` alone is pulled by
//   rows, if the row ids do not depend on variables of the servers; the gradient of such an
//   embedding, and a sum of several (of replicas), is pushed by rows. Then the optimizer leaves the
//   other rows, and their state, alone.
struct PsStep {
  struct RowPull {
    uint32_t variable;
    int ids;              // which output of `ids` these are
    uint32_t rows_input;  // where the rows go, and their places in it
    uint32_t places_input;
  };
  struct Push {
    enum class Value {
      kOutput,      // the run's output number `output`, times `scale`
      kRows,        // all of `rows` together
      kContents,    // of the worker's copy
      kDifference,  // between its contents now and when it was pulled
    };
    // Some rows of a table: outputs with their ids and values.
    struct Rows {
      int ids = -1;
      int values = -1;
      int64_t no_row = -1;  // an id whose rows are not pushed (padding)
    };
    uint32_t variable = 0;
    Update::Kind kind = Update::Kind::kAdd;
    Value value = Value::kOutput;
    int output = -1;
    double scale = 1;
    std::vector<Rows> rows;
    int lr_output = -1;  // for gradients
  };

  std::shared_ptr<const Plan> plan;  // its first outputs are the step's
  std::shared_ptr<BranchTuner> tuner = std::make_shared<BranchTuner>();  // of that plan
  size_t results = 0;
  std::shared_ptr<const Plan> ids;  // computes row ids from the step's inputs; null: no row pulls
  std::vector<uint32_t> pulled;     // variables, whole
  std::vector<RowPull> row_pulls;
  // Each round is one push: a variable comes once in it, and gradients have one learning rate.
  std::vector<std::vector<Push>> rounds;
};

// `on_servers`: which of the plan's variables live there. Fails for a step that reads a variable
// after its optimizer was given a gradient.
absl::StatusOr<PsStep> make_ps_step(const Plan& plan, const std::vector<bool>& on_servers);

}  // namespace trireme::internal
