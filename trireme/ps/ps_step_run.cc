#include "trireme/ps/ps_step_run.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <utility>

#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"

// The life of a run: pulls() replays the small plan that computes row ids and lists what to fetch,
// the variables that are pulled whole first and then the row pulls, in the order of the program.
// run() takes the fetched tensors in the same order, uses the whole variables as the worker's
// copies and the rows as additional inputs, and replays the plan, which changes the copies in
// place. The pushes are made from the outputs and the copies.
namespace trireme::internal {
namespace {

using Push = PsStep::Push;

}  // namespace

PsStepRun::PsStepRun(std::shared_ptr<const PsStep> program,
                     std::vector<std::optional<PsVariable>> variables, std::vector<at::Tensor> own,
                     std::vector<at::Tensor> inputs, uint64_t seed, uint64_t step)
    : program_(std::move(program)),
      variables_(std::move(variables)),
      contents_(std::move(own)),
      inputs_(std::move(inputs)),
      seed_(seed),
      step_(step) {
  contents_.resize(variables_.size());
  before_.resize(variables_.size());
}

std::vector<PsPull> PsStepRun::whole_pulls() const {
  std::vector<PsPull> pulls;
  for (uint32_t variable : program_->pulled) pulls.push_back({*variables_[variable]});
  return pulls;
}

std::vector<PsPull> PsStepRun::next_pulls() const {
  return program_->ids == nullptr ? whole_pulls() : std::vector<PsPull>();
}

absl::StatusOr<std::vector<PsPull>> PsStepRun::pulls() {
  std::vector<PsPull> pulls = whole_pulls();
  if (program_->ids == nullptr) return pulls;
  TRIREME_ASSIGN_OR_RETURN(row_ids_, replay(*program_->ids, inputs_, contents_, {}));
  for (const PsStep::RowPull& pull : program_->row_pulls) {
    pulls.push_back({*variables_[pull.variable], row_ids_[pull.ids]});
  }
  return pulls;
}

absl::Status PsStepRun::run(std::vector<at::Tensor> pulled, const ReplayOptions& options) {
  const size_t whole = program_->pulled.size();
  if (pulled.size() != whole + program_->row_pulls.size()) {
    return make_status(ErrorCode::kInternal,
                       "the pull returned a different number of tensors than the step asked for");
  }
  for (size_t i = 0; i < whole; ++i) contents_[program_->pulled[i]] = std::move(pulled[i]);
  // The replay changes the copies in place; a difference needs the contents from before.
  for (const auto& round : program_->rounds) {
    for (const Push& push : round) {
      if (push.value != Push::Value::kDifference) continue;
      before_[push.variable] = contents_[push.variable].clone();
    }
  }
  inputs_.resize(inputs_.size() + 2 * program_->row_pulls.size());
  for (size_t i = 0; i < program_->row_pulls.size(); ++i) {
    const PsStep::RowPull& pull = program_->row_pulls[i];
    const at::Tensor& ids = row_ids_[pull.ids];
    // One row was pulled for each id, repetitions included: the k-th id means the k-th row. The
    // padding row is one more row behind them, which no operator reads.
    at::Tensor& rows = inputs_[pull.rows_input] = std::move(pulled[whole + i]);
    at::Tensor& places = inputs_[pull.places_input];
    places = at::arange(ids.numel(), ids.options()).reshape(ids.sizes());
    if (pull.padding < 0) continue;
    std::vector<int64_t> one_row = rows.sizes().vec();
    one_row[0] = 1;
    rows = at::cat({rows, rows.new_zeros(one_row)});
    places = places.masked_fill(ids.eq(pull.padding), ids.numel());
  }
  at::Generator generator;
  if (program_->plan->graph->def.random()) generator = make_step_generator(seed_, step_);
  ReplayOptions tuned = options;
  tuned.tuner = program_->tuner.get();
  TRIREME_ASSIGN_OR_RETURN(
      outputs_, replay(*program_->plan, inputs_, contents_, std::move(generator), tuned));
  return absl::OkStatus();
}

std::vector<PsPush> PsStepRun::pushes(size_t round) const {
  std::vector<PsPush> pushes;
  for (const Push& push : program_->rounds[round]) {
    PsPush& made = pushes.emplace_back(PsPush{*variables_[push.variable], push.kind, {}, {}});
    switch (push.value) {
      case Push::Value::kOutput:
        made.values = outputs_[push.output];
        break;
      case Push::Value::kRows:
        gather_rows(push.rows, made);
        break;
      case Push::Value::kContents:
        made.values = contents_[push.variable];
        break;
      case Push::Value::kDifference:
        made.values = at::sub(contents_[push.variable], before_[push.variable]);
        break;
    }
    // An integral tensor is scaled by an integer, since a floating-point factor would change its
    // dtype.
    if (push.scale != 1) {
      made.values = c10::isIntegralType(made.values.scalar_type(), /*includeBool=*/false)
                        ? at::mul(made.values, static_cast<int64_t>(push.scale))
                        : at::mul(made.values, push.scale);
    }
  }
  return pushes;
}

void PsStepRun::gather_rows(const std::vector<Push::Rows>& slices, PsPush& made) const {
  const auto& sizes = made.variable.layout().sizes;
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  std::vector<at::Tensor> ids, values;
  for (const Push::Rows& slice : slices) {
    ids.push_back(outputs_[slice.ids].reshape({-1}));
    shape[0] = ids.back().numel();
    values.push_back(outputs_[slice.values].reshape(shape));
    if (slice.no_row < 0) continue;
    // The padding row of an embedding has no gradient.
    const at::Tensor kept = ids.back().ne(slice.no_row).nonzero().select(1, 0);
    ids.back() = ids.back().index_select(0, kept);
    values.back() = values.back().index_select(0, kept);
  }
  made.rows = slices.size() == 1 ? ids[0] : at::cat(ids);
  made.values = slices.size() == 1 ? values[0] : at::cat(values);
}

std::optional<double> PsStepRun::lr(size_t round) const {
  for (const Push& push : program_->rounds[round]) {
    if (push.lr_output >= 0) return outputs_[push.lr_output].item<double>();
  }
  return std::nullopt;
}

std::vector<at::Tensor> PsStepRun::results() const {
  return {outputs_.begin(), outputs_.begin() + static_cast<int64_t>(program_->results)};
}

}  // namespace trireme::internal
