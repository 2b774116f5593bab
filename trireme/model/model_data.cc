#include "trireme/model/model_data.h"

#include <cmath>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/access.h"
#include "trireme/base/error.h"
#include "trireme/data/rebatch.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

Error data_error(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

const Tensors* tensors_of(const DataSource& data) {
  return std::get_if<Tensors>(&Access<DataSource>::source(data));
}

// Returns the number of rows of all tensors. Throws Error if they differ.
int64_t rows_of(const Tensors& tensors) {
  const auto describe = [&] {
    return absl::StrJoin(tensors, ", ", [](std::string* text, const at::Tensor& tensor) {
      absl::StrAppend(text, tensor.defined() ? format_shape(tensor.sizes()) : "undefined");
    });
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == tensors[0].size(0)) continue;
    throw data_error(absl::StrCat(
        "the tensors have the shapes ", describe(),
        ", but the first axis of each must count the same examples; give inputs, targets and "
        "weights with equal numbers of rows"));
  }
  if (tensors.empty() || tensors[0].size(0) == 0) throw data_error("there are no examples");
  return tensors[0].size(0);
}

// Returns the batches of tensors or of a dataset; nullopt for a function that makes datasets.
std::optional<Dataset> batches_of(const DataSource& data, int64_t batch_size, bool shuffle) {
  const auto& source = Access<DataSource>::source(data);
  if (const auto* dataset = std::get_if<Dataset>(&source)) return *dataset;
  const Tensors* tensors = tensors_of(data);
  if (tensors == nullptr) return std::nullopt;
  const int64_t rows = rows_of(*tensors);
  const Dataset examples = Dataset::from_tensors(*tensors);
  return (shuffle ? examples.shuffle(rows) : examples).batch(batch_size);
}

bool is_counted(int64_t size) {
  return size != Dataset::kForever && size != Dataset::kUnknown;
}

void check_positive(std::optional<int64_t> steps, const char* option) {
  if (!steps || *steps > 0) return;
  throw data_error(absl::StrCat(option, " is ", *steps, ", but must be 1 or more"));
}

DatasetCreator creator_of(const DataSource& data) {
  const auto& source = Access<DataSource>::source(data);
  if (const auto* creator = std::get_if<DatasetCreator>(&source)) return *creator;
  return DatasetCreator(
      [dataset = std::get<Dataset>(source)](const InputContext&) { return dataset; });
}

// Workers that train together take turns with the parts of the batches. Workers of a coordinator
// each draw from the whole dataset.
DatasetCreator creator_of_parts(const Dataset& batches, const StepRunner& runner) {
  return DatasetCreator([batches, divides = runner.runs_here()](const InputContext& context) {
    return divides && context.num_input_pipelines > 1 ? batches.shard(context) : batches;
  });
}

void check_not_empty(const DataSource& data, const char* call) {
  if (data.empty()) throw data_error(absl::StrCat(call, "() was given no data"));
}

}  // namespace

DataSource with_weights(const DataSource& data, const at::Tensor& weights, const char* call) {
  check_not_empty(data, call);
  if (!weights.defined()) return data;
  const Tensors* tensors = tensors_of(data);
  if (tensors == nullptr) {
    throw data_error(absl::StrCat(
        call,
        "() was given sample_weight with a dataset; let the batches of the dataset have the "
        "weights as their last tensor instead"));
  }
  Tensors all = *tensors;
  all.push_back(weights);
  return all;
}

FitData divide(const DataSource& data, const FitOptions& options) {
  if (options.validation_split == 0) return {data, options.validation};
  if (!options.validation.empty()) {
    throw data_error("fit() was given both validation and validation_split; give one of them");
  }
  const Tensors* tensors = tensors_of(data);
  if (tensors == nullptr) {
    throw data_error(
        "fit() was given validation_split with a dataset, whose examples it cannot divide; give "
        "the data as tensors, or a second dataset as validation");
  }
  const int64_t rows = rows_of(*tensors);
  const auto first =
      static_cast<int64_t>(std::floor(static_cast<double>(rows) * (1 - options.validation_split)));
  if (!(options.validation_split > 0) || first < 1 || first >= rows) {
    throw data_error(absl::StrCat("validation_split is ", options.validation_split,
                                  ", which divides ", rows, " examples into ", first, " and ",
                                  rows - first,
                                  "; it must be between 0 and 1 and leave some for both"));
  }
  Tensors training, validation;
  for (const at::Tensor& tensor : *tensors) {
    training.push_back(tensor.narrow(0, 0, first));
    validation.push_back(tensor.narrow(0, first, rows - first));
  }
  return {training, validation};
}

OpenedData open_training(StepRunner& runner, const DataSource& data, const FitOptions& options,
                         int64_t batches_per_step) {
  check_positive(options.steps_per_epoch, "steps_per_epoch");
  const bool as_tensors = tensors_of(data) != nullptr;
  const int64_t steps = options.steps_per_epoch.value_or(0);
  if (!as_tensors && steps == 0 && runner.needs_steps_per_epoch()) {
    throw data_error(
        "fit() needs steps_per_epoch: under this strategy each worker draws from its own dataset, "
        "so the length of an epoch does not follow from the data. Set it in the options of fit(), "
        "or give the data as tensors");
  }
  std::optional<Dataset> batches = batches_of(data, options.batch_size, options.shuffle);
  if (batches && !as_tensors && steps == 0 && batches->size() == Dataset::kForever) {
    throw data_error(absl::StrCat("fit() needs steps_per_epoch: the dataset ", batches->describe(),
                                  " never ends, so the length of an epoch does not follow from it. "
                                  "Set it in the options of fit()"));
  }
  OpenedData opened{.steps = steps, .expected_steps = steps};
  if (steps == 0 && batches && is_counted(batches->size())) {
    opened.expected_steps = batches->size() * runner.parts_of_batch() / batches_per_step;
  }
  if (batches && runner.parts_of_batch() > 1) {
    batches = divide_batches(*batches, runner.parts_of_batch());
  }
  // Tensors begin again when all of them were drawn, if steps are counted.
  if (as_tensors) {
    opened.data = runner.open_shared(*batches, steps == 0 ? 1 : 0);
  } else {
    opened.data = runner.open(batches ? creator_of_parts(*batches, runner) : creator_of(data));
  }
  return opened;
}

OpenedData open_evaluation(StepRunner& runner, const DataSource& data, int64_t batch_size,
                           std::optional<int64_t> steps, const char* option) {
  check_positive(steps, option);
  const std::optional<Dataset> batches = batches_of(data, batch_size, /*shuffle=*/false);
  if (!steps && !batches && runner.needs_steps_per_epoch()) {
    throw data_error(absl::StrCat(
        "an evaluation of the data of a function needs ", option,
        ": under this strategy each worker draws from its own dataset. Set it, or give a dataset "
        "or tensors, of which each example is used once"));
  }
  if (!steps && batches && batches->size() == Dataset::kForever) {
    throw data_error(absl::StrCat("the dataset ", batches->describe(),
                                  " never ends, so an evaluation needs ", option,
                                  ". Set it in the options"));
  }
  OpenedData opened{.steps = steps.value_or(0), .expected_steps = steps.value_or(0)};
  if (!steps && batches && is_counted(batches->size())) opened.expected_steps = batches->size();
  opened.shared = batches.has_value();
  opened.data =
      batches ? runner.open_shared(*batches, /*epochs=*/1) : runner.open(creator_of(data));
  return opened;
}

}  // namespace trireme::internal
