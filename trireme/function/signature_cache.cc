// A list in the order of use, searched linearly: a function has few signatures. The key does not
// cover everything that the validity of a graph depends on. Training modes are compared with the
// snapshot in the graph, so that graphs for both modes stay in the cache. A graph whose variables
// or constants have changed (is_valid) will not become valid again, so it is removed when it is
// found.
#include "trireme/function/signature_cache.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/logging.h"

namespace trireme::internal {
namespace {

constexpr int kRetracesBeforeWarning = 5;

}  // namespace

std::string signature_key(const std::vector<std::string>& arguments) {
  std::string key = absl::StrJoin(arguments, ";");
  absl::StrAppend(&key, c10::GradMode::is_enabled() ? "|g" : "|n",
                  c10::get_default_dtype_as_scalartype() == at::kFloat ? "" : "|d");
  return key;
}

SignatureCache::SignatureCache(std::string function, size_t capacity)
    : function_(std::move(function)), capacity_(capacity) {}

std::shared_ptr<const CapturedGraph> SignatureCache::find(const std::string& key) {
  MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->key != key || !entry->graph->modes.are_current()) continue;
    if (!entry->graph->is_valid()) {
      entries_.erase(entry);
      return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, entry);
    return entries_.front().graph;
  }
  return nullptr;
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
    std::string which = "no argument, but the training mode or the contents of a constant";
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
