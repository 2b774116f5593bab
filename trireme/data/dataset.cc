#include "trireme/data/dataset.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/example_element.h"
#include "trireme/data/stream.h"
#include "trireme/exec/random.h"
#include "trireme/graph/graph_file.h"

// A dataset is a linked list of checked steps (DatasetStep), which it shares with the datasets that
// it was made from. The methods here only write down the definition of a step; add_step() checks
// it, in the same way as definitions that arrive from another process. Nothing is read before an
// iterator draws: DatasetSource opens a stream for the last step, which pulls from those before it.
namespace trireme {
namespace {

using internal::DatasetStepPtr;
using internal::Element;

Dataset with_step(const DatasetStepPtr& input, proto::DatasetStep def,
                  std::vector<at::Tensor> tensors = {}) {
  const internal::SuspendDeviceCheck own;
  return internal::Access<Dataset>::make(
      value_or_throw(internal::add_step(input, std::move(def), std::move(tensors))));
}

// Draws the elements of a dataset for an iterator. The mutex makes draws of several threads follow
// each other; each element is drawn once.
class DatasetSource : public internal::ElementSource {
 public:
  DatasetSource(const DatasetStepPtr& step, uint64_t seed)
      : name_(absl::StrCat("iterator over ", internal::describe(*step))),
        stream_(internal::open_stream(step, seed)) {}

  Element draw() override {
    if (internal::is_inlined()) {
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("function '", internal::captured_function(),
                               "' draws from it without taking it as an argument, and would see "
                               "the same element in every call; give the function an argument of "
                               "type tr::Iterator& and pass the iterator"),
                  {"", name_});
    }
    const internal::SuspendDeviceCheck own;
    MutexLock lock(mutex_);
    if (!returned_.empty()) {
      Element element = std::move(returned_.back());
      returned_.pop_back();
      return element;
    }
    std::optional<Element> element = pull(*stream_);
    if (element) return *std::move(element);
    throw Error(ErrorCode::kEndOfData,
                "there are no more elements; add repeat() to the dataset to start over",
                {"", name_});
  }

  void put_back(Element element) override {
    MutexLock lock(mutex_);
    returned_.push_back(std::move(element));
  }

  std::string name() const override { return name_; }

 private:
  // Draws from the stream. Errors of LibTorch and of steps get the name of the iterator.
  std::optional<Element> pull(internal::Stream<Element>& stream) const {
    auto element = try_call([&] { return value_or_throw(stream.next()); });
    if (!element.ok()) throw to_error(with_origin(element.status(), {"", name_}));
    return *std::move(element);
  }

  const std::string name_;
  Mutex mutex_;
  const std::unique_ptr<internal::Stream<Element>> stream_ ABSL_PT_GUARDED_BY(mutex_);
  std::vector<Element> returned_ ABSL_GUARDED_BY(mutex_);  // elements put back; the last is next
};

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
  return internal::Access<Iterator>::make(std::make_shared<DatasetSource>(last_, options.seed));
}

const std::vector<ElementSpec>& Dataset::element_specs() const {
  return last_->specs;
}

int64_t Dataset::size() const {
  return last_->count;
}

std::string Dataset::describe() const {
  return internal::describe(*last_);
}

}  // namespace trireme
