#include "trireme/data/mapped.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/data/parallel_map.h"
#include "trireme/exec/random.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"

namespace trireme::internal {
namespace {

class Mapped : public Stream<Element> {
 public:
  Mapped(DatasetStepPtr step, uint64_t key, StreamPtr<Element> input)
      : function_(std::move(step), key), input_(std::move(input)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::optional<Element> element, input_->next());
    if (!element) return std::nullopt;
    return function_(*element, number_++);
  }
  Skipped skip(int64_t count) override {
    TRIREME_ASSIGN_OR_RETURN(const int64_t skipped, input_->skip(count));
    number_ += skipped;
    return skipped;
  }

 private:
  ElementFunction function_;
  const StreamPtr<Element> input_;
  uint64_t number_ = 0;  // number of the next element; seeds its random numbers
};

absl::Status function_error(const DatasetStep& step, std::string message) {
  return make_status(ErrorCode::kInvalidArgument, std::move(message),
                     {"", absl::StrCat("dataset step ", step.number, " '",
                                       step.def.has_map() ? "map" : "filter", "'")});
}

}  // namespace

// A tuner measures branches, one run at a time, so runs on other threads do without.
struct ElementFunction::Tuners {
  Mutex mutex;
  std::map<const Plan*, BranchTuner> by_plan ABSL_GUARDED_BY(mutex);
};

ElementFunction::ElementFunction(DatasetStepPtr step, uint64_t key)
    : step_(std::move(step)),
      seed_(step_seed(step_->def.map().seed(), key)),
      tuners_(std::make_unique<Tuners>()) {}

ElementFunction::~ElementFunction() = default;

absl::StatusOr<Element> ElementFunction::operator()(const Element& element, uint64_t number) {
  const std::vector<ElementSpec>& specs = step_->input->specs;
  const ElementSpec spec = spec_of(element);
  const auto found = std::find(specs.begin(), specs.end(), spec);
  if (found == specs.end()) {
    return function_error(*step_, absl::StrCat("it has no graph for ", to_string(spec)));
  }
  const Plan* const plan = step_->plans[found - specs.begin()].get();
  at::Generator generator;
  if (plan->graph->def.random()) generator = make_step_generator(seed_, number);
  ReplayOptions options;
  if (step_->def.map().threads() <= 1) {
    MutexLock lock(tuners_->mutex);
    options.tuner = &tuners_->by_plan[plan];
  }
  TRIREME_ASSIGN_OR_RETURN(Element result,
                           replay(*plan, element, {}, std::move(generator), options));
  // The steps after this one rely on the shapes that the graph declares and on contiguous memory.
  // The graph may come from a peer, so its results are compared with the declaration.
  const ElementSpec made = spec_of(result);
  const bool is_declared =
      step_->def.has_map()
          ? std::find(step_->specs.begin(), step_->specs.end(), made) != step_->specs.end()
          : made == ElementSpec{{at::kBool, {}}};
  if (!is_declared) {
    return function_error(*step_,
                          absl::StrCat("its function returned ", to_string(made),
                                       ", which differs from the types that its graph declares"));
  }
  for (at::Tensor& tensor : result) tensor = tensor.contiguous();
  return result;
}

StreamPtr<Element> open_mapped(DatasetStepPtr step, uint64_t key, StreamPtr<Element> input) {
  const auto threads = static_cast<int>(step->def.map().threads());
  if (threads <= 1) return std::make_unique<Mapped>(std::move(step), key, std::move(input));
  auto function = std::make_shared<ElementFunction>(std::move(step), key);
  return open_parallel_map(
      threads, std::move(input), 0,
      [function](const Element& element, uint64_t number) { return (*function)(element, number); });
}

}  // namespace trireme::internal
