// Records the operators that a program captures, with their arguments, as lines in the format of
// call.h. tests/fuzz/operators/harvest preloads this library into the tests and merges the lines.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/fuzz/operators/call.h"

namespace trireme::fuzz {
namespace {

constexpr int64_t kMaxElements = 1 << 16;  // elements of all tensors of one call
constexpr size_t kMaxPerOperator = 200;

int64_t elements(const c10::IValue& argument) {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    if (!tensor.defined()) return 0;
    if (tensor.layout() == at::kStrided && tensor.has_storage()) {
      return static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
    }
    return tensor.numel();
  }
  int64_t count = 0;
  if (argument.isList()) {
    for (const c10::IValue& item : argument.toListRef()) count += elements(item);
  }
  return count;
}

void observe(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  static std::mutex mutex;
  static auto* seen = new std::map<std::string, std::set<std::string>>;
  static std::FILE* file = [] {
    const std::string path =
        std::string(std::getenv("TRIREME_HARVEST")) + "/" + std::to_string(getpid()) + ".txt";
    return std::fopen(path.c_str(), "w");
  }();
  int64_t count = 0;
  for (const c10::IValue& argument : arguments) count += elements(argument);
  if (count > kMaxElements || file == nullptr) return;
  std::lock_guard lock(mutex);
  auto& lines = (*seen)[full_name(op)];
  if (lines.size() >= kMaxPerOperator) return;
  const std::string line = format_call(op, arguments);
  if (line.empty() || !lines.insert(line).second) return;
  std::fprintf(file, "%s\n", line.c_str());
  std::fflush(file);
}

__attribute__((constructor)) void begin() {
  using Observer = void (*)(const c10::OperatorHandle&, c10::ArrayRef<c10::IValue>);
  auto* slot = static_cast<Observer*>(dlsym(RTLD_DEFAULT, "_ZN7trireme8internal13call_observerE"));
  if (slot != nullptr && std::getenv("TRIREME_HARVEST") != nullptr) *slot = observe;
}

}  // namespace
}  // namespace trireme::fuzz
