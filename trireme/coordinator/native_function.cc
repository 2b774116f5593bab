#include "trireme/coordinator/native_function.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

struct Registry {
  Mutex mutex;
  std::map<std::string, NativeBody> bodies ABSL_GUARDED_BY(mutex);
};

// Functions are made before main(), in whatever order.
Registry& registry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

void add_native_function(const std::string& name, NativeBody body) {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  if (all.bodies.try_emplace(name, std::move(body)).second) return;
  throw Error(ErrorCode::kAlreadyExists,
              "this program has made one of that name before; names tell workers which to run",
              {"", absl::StrCat("native function '", name, "'")});
}

const NativeBody* find_native_function(const std::string& name) {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  const auto found = all.bodies.find(name);
  return found == all.bodies.end() ? nullptr : &found->second;
}

}  // namespace trireme::internal
