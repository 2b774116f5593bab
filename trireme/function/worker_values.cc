#include "trireme/function/worker_values.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "trireme/capture/operator_hook.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {
namespace {

at::Tensor copy_of(const at::Tensor& value) {
  return value.is_sparse() ? value.clone() : value.clone(at::MemoryFormat::Contiguous);
}

// Calls an operator of a graph, which a capture records.
at::Tensor placeholder(const char* name, const at::Tensor& value) {
  register_worker_values();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(value);
}

// Returns true if the workers combine values now, and not when a graph runs.
bool runs_at_once() {
  return current_hook() == nullptr || current_hook()->only_checks();
}

}  // namespace

bool combines_over_workers(const GraphData& graph) {
  return std::ranges::any_of(graph.def.nodes(), [](const proto::Node& node) {
    return node.op() == kSumOverWorkers || node.op() == kSumGradients ||
           node.op() == kFirstOfWorkers;
  });
}

void register_worker_values() {
  // Never destroyed, like the operators themselves.
  [[gnu::used]] static const auto* library = [] {
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, "trireme", std::nullopt, __FILE__, __LINE__);
    for (const char* schema : {"sum_over_workers(Tensor value) -> Tensor",
                               "sum_gradients_over_workers(Tensor value) -> Tensor",
                               "first_of_workers(Tensor value) -> Tensor"}) {
      made->def(schema,
                torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(copy_of)));
    }
    return made;
  }();
}

at::Tensor sum_over_workers(WorkerGroup& workers, const at::Tensor& value) {
  return runs_at_once() ? workers.sum(value, "sum") : placeholder(kSumOverWorkers, value);
}

at::Tensor sum_gradients_over_workers(WorkerGroup& workers, const at::Tensor& gradient) {
  return runs_at_once() ? workers.sum(gradient, "sum of gradients")
                        : placeholder(kSumGradients, gradient);
}

at::Tensor first_of_workers(WorkerGroup& workers, const at::Tensor& value) {
  return runs_at_once() ? workers.first(value, "first") : placeholder(kFirstOfWorkers, value);
}

}  // namespace trireme::internal
