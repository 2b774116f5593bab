#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/graph/plan.h"
#include "trireme/ps/update.h"

namespace trireme::internal {

// The program of a captured step whose variables live on parameter servers: what a worker pulls
// before it runs the operators, which operators it runs, and what it pushes afterwards. Operators
// that only change a variable are left out, since the servers do their work. A program is plain
// data and follows from the graph alone: every task that has the graph derives the same program.
//
// - A variable that is read before it is changed is pulled once, at the start. A read after a
//   change sees the change, in the worker's copy.
// - `assign_add`, `assign_sub` and `assign` push their argument, and `minimize` pushes gradients.
//   Any other write (the running statistics of batch norm) is pushed as the difference that it
//   made.
// - A variable that is used only by `embedding`, `index_select` and `_embedding_bag` is pulled by
//   rows, if the row ids do not depend on variables of the servers.
// - The gradient of such operators is pushed by rows, also if it was summed, scaled or clipped
//   before (row_gradients.h). Then the optimizer leaves the other rows and their state alone, and
//   the worker computes no other rows.
struct PsStep {
  // Rows of a variable that are pulled for one operator.
  struct RowPull {
    uint32_t variable;      // index of the variable in the plan
    int ids;                // output of the plan `ids` that holds the row ids
    uint32_t rows_input;    // input of `plan` that takes the pulled rows
    uint32_t places_input;  // input of `plan` that says which pulled row stands for each id
    // Id of the row that the operator leaves out, whose place is after the pulled rows; -1 for
    // none.
    int64_t padding = -1;
  };
  // An update of one variable.
  struct Push {
    // Source of the values.
    enum class Value {
      kOutput,      // output number `output` of the run, times `scale`
      kRows,        // the rows in `rows`, concatenated
      kContents,    // contents of the worker's copy after the run
      kDifference,  // contents of the worker's copy after the run minus those that were pulled
    };
    // Some rows of a table, in two outputs of the run.
    struct Rows {
      int ids = -1;         // output with the row ids
      int values = -1;      // output with the rows
      int64_t no_row = -1;  // id of the padding row, which is not pushed; -1 for none
    };
    uint32_t variable = 0;  // index of the variable in the plan
    Update::Kind kind = Update::Kind::kAdd;
    Value value = Value::kOutput;
    int output = -1;
    double scale = 1;
    std::vector<Rows> rows;
    int lr_output = -1;  // output with the learning rate of a gradient; -1 for none
  };

  // Runs the operators. Its outputs are the results of the step, then the values to be pushed.
  std::shared_ptr<const Plan> plan;
  // Tuner of `plan`; null to run it in captured order.
  std::shared_ptr<BranchTuner> tuner = std::make_shared<BranchTuner>();
  size_t results = 0;               // number of outputs that are results of the step
  std::shared_ptr<const Plan> ids;  // computes row ids from the inputs; null if no rows are pulled
  std::vector<uint32_t> pulled;     // variables that are pulled whole
  std::vector<RowPull> row_pulls;
  // Pushes, in rounds that are sent one after the other. A push carries one update of a variable
  // and one learning rate; a step that needs more has several rounds.
  std::vector<std::vector<Push>> rounds;
};

// Derives the program of a step. on_servers[i] is true if variable i of the plan lives on the
// servers. Fails if the step reads a variable after its optimizer was given a gradient: the servers
// apply gradients only after the step.
//
// Also fails if the step reads a variable of more than `largest_whole_gradient` bytes only by rows,
// but would push a whole gradient of it. The error names the operator because of which the rows of
// the gradient are not known. Only the client program passes a limit: the program of the step is
// the same with any limit, and workers accept what the client program accepted.
absl::StatusOr<PsStep> make_ps_step(
    const Plan& plan, const std::vector<bool>& on_servers,
    uint64_t largest_whole_gradient = std::numeric_limits<uint64_t>::max());

}  // namespace trireme::internal
