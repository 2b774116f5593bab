#include "trireme/data/dataset.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_source.h"
#include "trireme/data/dataset_steps.h"
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

// The graphs of a function, one for each specification of the elements, and their constants.
struct CapturedGraphs {
  google::protobuf::RepeatedPtrField<proto::GraphDef> defs;
  std::vector<at::Tensor> constants;
};

CapturedGraphs capture_graphs(const Dataset& dataset, const char* step, size_t tensors,
                              const std::function<Graph(const std::vector<at::Tensor>&)>& graph) {
  if (dataset.element_spec().size() != tensors) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the function of ", step, " takes ", tensors,
                             " tensors, but elements are ", to_string(dataset.element_spec())),
                {"", absl::StrCat("dataset ", dataset.describe())});
  }
  CapturedGraphs graphs;
  // A graph is for one shape. The function is captured on zeros.
  for (const ElementSpec& spec : dataset.element_specs()) {
    if (!internal::has_fixed_sizes(spec)) break;  // add_step() rejects the step
    const internal::SuspendDeviceCheck own;
    const Graph captured = graph(internal::zeros(spec));
    const internal::GraphData& data = *internal::Access<Graph>::plan(captured)->graph;
    *graphs.defs.Add() = data.def;
    for (at::Tensor& row : internal::constant_rows(data)) {
      graphs.constants.push_back(std::move(row));
    }
  }
  return graphs;
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

Dataset Dataset::map_graphs(size_t tensors, const GraphFunction& graph,
                            const MapOptions& options) const {
  CapturedGraphs graphs = capture_graphs(*this, "map", tensors, graph);
  proto::DatasetStep def;
  def.mutable_map()->set_seed(current_seed());
  def.mutable_map()->set_threads(static_cast<uint32_t>(std::max(options.threads, 0)));
  *def.mutable_map()->mutable_graphs() = std::move(graphs.defs);
  return with_step(last_, std::move(def), std::move(graphs.constants));
}

Dataset Dataset::filter_graphs(size_t tensors, const GraphFunction& graph) const {
  CapturedGraphs graphs = capture_graphs(*this, "filter", tensors, graph);
  proto::DatasetStep def;
  *def.mutable_filter()->mutable_graphs() = std::move(graphs.defs);
  return with_step(last_, std::move(def), std::move(graphs.constants));
}

Dataset Dataset::padded_batch(int64_t size, const PaddedBatchOptions& options) const {
  proto::DatasetStep def;
  def.mutable_padded_batch()->set_size(size);
  def.mutable_padded_batch()->set_drop_remainder(options.drop_remainder);
  def.mutable_padded_batch()->set_value(options.value);
  for (const std::vector<int64_t>& sizes : options.sizes) {
    auto* const tensor = def.mutable_padded_batch()->add_tensors();
    tensor->mutable_sizes()->Add(sizes.begin(), sizes.end());
  }
  return with_step(last_, std::move(def));
}

Dataset Dataset::zip(const std::vector<Dataset>& datasets) {
  if (datasets.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "zip() needs at least one dataset");
  }
  proto::DatasetStep def;
  def.mutable_zip();
  std::vector<at::Tensor> tensors;
  for (size_t i = 1; i < datasets.size(); ++i) {
    internal::write_steps(*datasets[i].last_, *def.mutable_zip()->add_others(), tensors);
  }
  return with_step(datasets[0].last_, std::move(def), std::move(tensors));
}

Dataset Dataset::concatenate(const Dataset& other) const {
  proto::DatasetStep def;
  std::vector<at::Tensor> tensors;
  internal::write_steps(*other.last_, *def.mutable_concatenate()->mutable_other(), tensors);
  return with_step(last_, std::move(def), std::move(tensors));
}

Dataset Dataset::interleave(int64_t cycle, const InterleaveOptions& options) const {
  proto::DatasetStep def;
  def.mutable_interleave()->set_cycle(cycle);
  def.mutable_interleave()->set_block_length(options.block_length);
  return with_step(last_, std::move(def));
}

Dataset Dataset::cache() const {
  proto::DatasetStep def;
  def.mutable_cache();
  return with_step(last_, std::move(def));
}

Dataset Dataset::prefetch(int64_t count) const {
  proto::DatasetStep def;
  def.mutable_prefetch()->set_count(count);
  return with_step(last_, std::move(def));
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
