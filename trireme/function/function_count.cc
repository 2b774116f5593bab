#include "trireme/function/function_count.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

struct FunctionCounts {
  Mutex mutex;
  std::map<std::string, FunctionCount*> live ABSL_GUARDED_BY(mutex);
  // Counts for functions that are not made yet.
  std::map<std::string, uint64_t> restored ABSL_GUARDED_BY(mutex);

  // Never destroyed, since functions may be static objects.
  static FunctionCounts& instance() {
    static auto* counts = new FunctionCounts;
    return *counts;
  }
};

}  // namespace

FunctionCount::FunctionCount(const std::string& name) : name_(name) {
  FunctionCounts& counts = FunctionCounts::instance();
  MutexLock lock(counts.mutex);
  for (int i = 1; counts.live.contains(name_); ++i) name_ = absl::StrCat(name, "_", i);
  counts.live[name_] = this;
  if (const auto restored = counts.restored.extract(name_)) next_ = restored.mapped();
}

FunctionCount::~FunctionCount() {
  FunctionCounts& counts = FunctionCounts::instance();
  MutexLock lock(counts.mutex);
  counts.live.erase(name_);
}

std::map<std::string, uint64_t> function_counts() {
  FunctionCounts& counts = FunctionCounts::instance();
  MutexLock lock(counts.mutex);
  std::map<std::string, uint64_t> result;
  for (const auto& [name, count] : counts.live) result[name] = count->next();
  return result;
}

void restore_function_counts(const std::map<std::string, uint64_t>& values) {
  FunctionCounts& counts = FunctionCounts::instance();
  MutexLock lock(counts.mutex);
  counts.restored = values;
  for (const auto& [name, count] : counts.live) {
    if (const auto restored = counts.restored.extract(name)) count->set(restored.mapped());
  }
}

}  // namespace trireme::internal
