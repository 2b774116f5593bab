// A list in the order of use, searched linearly: a function has few signatures. The key does not
// cover everything that the validity of a graph depends on. The states of modules are compared with
// the snapshot in the graph, so that graphs for train() and eval() stay in the cache. A graph whose
// variables or constants have changed (is_valid) will not become valid again, so it is removed when
// it is found.
#include "trireme/function/signature_cache.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/logging.h"
#include "trireme/capture/device_request.h"

namespace trireme::internal {
namespace {

constexpr int kRetracesBeforeWarning = 5;

}  // namespace

std::string signature_key(const std::vector<std::string>& arguments) {
  std::string key = absl::StrJoin(arguments, ";");
  absl::StrAppend(&key, c10::GradMode::is_enabled() ? "|g" : "|n");
  if (const auto dtype = c10::get_default_dtype_as_scalartype(); dtype != at::kFloat) {
    absl::StrAppend(&key, "|default ", c10::toString(dtype));
  }
  if (device_scope_count() > 0) absl::StrAppend(&key, "|device ", device_scope_names());
  for (const at::DeviceType device : {at::kCPU, at::kCUDA, at::kPrivateUse1}) {
    if (!at::autocast::is_autocast_enabled(device)) continue;
    absl::StrAppend(&key, "|autocast ", c10::DeviceTypeName(device), " ",
                    c10::toString(at::autocast::get_autocast_dtype(device)));
  }
  return key;
}

SignatureCache::SignatureCache(std::string function, size_t capacity)
    : function_(std::move(function)), capacity_(capacity) {}

std::shared_ptr<const CapturedGraph> SignatureCache::find(const std::string& key) {
  // One key may have several graphs, for different states of the modules. They are checked without
  // the lock: a check hashes tensors and visits modules, and threads may share a function.
  for (const auto& graph : graphs_of(key)) {
    if (!graph->modules.are_current()) continue;
    const bool valid = graph->is_valid();
    MutexLock lock(mutex_);
    const auto entry = std::ranges::find(entries_, graph, &Entry::graph);
    if (valid) {
      if (entry != entries_.end()) entries_.splice(entries_.begin(), entries_, entry);
      return graph;
    }
    if (entry != entries_.end()) entries_.erase(entry);
  }
  return nullptr;
}

std::vector<std::shared_ptr<const CapturedGraph>> SignatureCache::graphs_of(
    const std::string& key) const {
  std::vector<std::shared_ptr<const CapturedGraph>> graphs;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.key == key) graphs.push_back(entry.graph);
  }
  return graphs;
}

void SignatureCache::add(Entry entry, std::vector<std::string> arguments) {
  MutexLock lock(mutex_);
  count_capture(std::move(arguments));
  entries_.push_front(std::move(entry));
  if (entries_.size() > capacity_) entries_.pop_back();
}

std::vector<size_t> SignatureCache::known_draws(const std::string& arguments,
                                                size_t sources) const {
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.arguments == arguments) return entry.draws;
  }
  return std::vector<size_t>(sources, 0);
}

int SignatureCache::captures() const {
  MutexLock lock(mutex_);
  return captures_;
}

void SignatureCache::count_capture(std::vector<std::string> arguments) {
  // The first capture does not count as a retrace.
  if (captures_++ == kRetracesBeforeWarning) {
    std::string which =
        "no argument, but the state of a module, the contents of a constant or a device scope";
    for (size_t i = 0; i < arguments.size() && i < last_arguments_.size(); ++i) {
      if (arguments[i] == last_arguments_[i]) continue;
      which =
          absl::StrCat("argument ", i, ": ", last_arguments_[i], " before, ", arguments[i], " now");
      break;
    }
    log_warning("function '", function_, "' was captured again for the ", kRetracesBeforeWarning,
                "th time, which is slow. Changed since the last capture: ", which,
                ". Pad batches to one shape, and pass numbers that change as tensors.");
  }
  last_arguments_ = std::move(arguments);
}

}  // namespace trireme::internal
