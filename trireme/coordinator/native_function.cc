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

// Made at its first use, because native functions may be made before main(), in any order. Never
// destroyed, so that pointers to its functions stay valid.
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
              "the program has made a native function of this name before; choose another name, "
              "since workers find functions by their names",
              {"", absl::StrCat("native function '", name, "'")});
}

const NativeBody* find_native_function(const std::string& name) {
  Registry& all = registry();
  MutexLock lock(all.mutex);
  const auto found = all.bodies.find(name);
  return found == all.bodies.end() ? nullptr : &found->second;
}

}  // namespace trireme::internal
