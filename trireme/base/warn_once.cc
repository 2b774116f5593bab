#include "trireme/base/warn_once.h"

#include <set>

#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

struct WarnedTexts {
  Mutex mutex;
  std::set<std::string> texts ABSL_GUARDED_BY(mutex);
};

}  // namespace

void warn_once(const std::string& text, const std::string& key) {
  static auto* const warned = new WarnedTexts;  // never destroyed: threads may warn until the end
  {
    MutexLock lock(warned->mutex);
    if (!warned->texts.insert(key.empty() ? text : key).second) return;
  }
  log_warning(text);
}

}  // namespace trireme::internal
