#include "trireme/data/dataset.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_source.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/example_element.h"
#include "trireme/exec/random.h"
#include "trireme/graph/graph_file.h"

// A dataset is a linked list of checked steps (DatasetStep), which it shares with the datasets that
// it was made from. The methods here only write down the definition of a step; add_step() checks
// it, in the same way as definitions that arrive from another process. Nothing is read before an
// iterator draws: DatasetSource opens a stream for the last step, which pulls from those before it.
namespace trireme {
namespace {

using internal::DatasetStepPtr;

Dataset with_step(const DatasetStepPtr& input, proto::DatasetStep def,
                  std::vector<at::Tensor> tensors = {}) {
  const internal::SuspendDeviceCheck own;
  return internal::Access<Dataset>::make(
      value_or_throw(internal::add_step(input, std::move(def), std::move(tensors))));
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const internal::DatasetStep> last) : last_(std::move(last)) {}

Dataset Dataset::range(int64_t end) {
  return range(0, end);
}

Dataset Dataset::range(int64_t begin, int64_t end, int64_t step) {
  proto::DatasetStep def;
  def.mutable_range()->set_begin(begin);
  def.mutable_range()->set_end(end);
  def.mutable_range()->set_step(step);
  return with_step(nullptr, std::move(def));
}

Dataset Dataset::from_tensors(std::vector<at::Tensor> tensors) {
  proto::DatasetStep def;
  def.mutable_tensors()->set_count(static_cast<uint32_t>(tensors.size()));
  return with_step(nullptr, std::move(def), std::move(tensors));
}

Dataset Dataset::batch(int64_t size, const BatchOptions& options) const {
  proto::DatasetStep def;
  def.mutable_batch()->set_size(size);
  def.mutable_batch()->set_drop_remainder(options.drop_remainder);
  return with_step(last_, std::move(def));
}

Dataset Dataset::shuffle(int64_t buffer, const ShuffleOptions& options) const {
  proto::DatasetStep def;
  def.mutable_shuffle()->set_buffer(buffer);
  def.mutable_shuffle()->set_seed(options.seed.value_or(current_seed()));
  return with_step(last_, std::move(def));
}

Dataset Dataset::repeat(int64_t count) const {
  proto::DatasetStep def;
  def.mutable_repeat()->set_count(count);
  return with_step(last_, std::move(def));
}

Dataset Dataset::take(int64_t count) const {
  proto::DatasetStep def;
  def.mutable_take()->set_count(count);
  return with_step(last_, std::move(def));
}

Dataset Dataset::skip(int64_t count) const {
  proto::DatasetStep def;
  def.mutable_skip()->set_count(count);
  return with_step(last_, std::move(def));
}

Dataset Dataset::map_graphs(
    size_t tensors, const std::function<Graph(const std::vector<at::Tensor>&)>& graph) const {
  if (element_spec().size() != tensors) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the function of map takes ", tensors, " tensors, but elements are ",
                             to_string(element_spec())),
                {"", absl::StrCat("dataset ", describe())});
  }
  proto::DatasetStep def;
  def.mutable_map()->set_seed(current_seed());
  std::vector<at::Tensor> constants;
  // A graph is for one shape. The function is captured on zeros, one graph for each specification.
  for (const ElementSpec& spec : element_specs()) {
    const internal::SuspendDeviceCheck own;
    const Graph captured = graph(internal::zeros(spec));
    const internal::GraphData& data = *internal::Access<Graph>::plan(captured)->graph;
    *def.mutable_map()->add_graphs() = data.def;
    for (at::Tensor& row : internal::constant_rows(data)) constants.push_back(std::move(row));
  }
  return with_step(last_, std::move(def), std::move(constants));
}

Iterator Dataset::iterator(const IteratorOptions& options) const {
  return internal::Access<Iterator>::make(
      std::make_shared<internal::DatasetSource>(last_, options.seed));
}

const std::vector<ElementSpec>& Dataset::element_specs() const {
  return last_->specs;
}

int64_t Dataset::size() const {
  return last_->count;
}

std::string Dataset::describe() const {
  return internal::describe_steps(*last_);
}

}  // namespace trireme
