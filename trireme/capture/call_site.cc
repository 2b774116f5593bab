#include "trireme/capture/call_site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

constexpr int kMaxFrames = 192;

// Returns the demangled name of the function that an address is in; empty if it is not exported.
std::string function_at(void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) return "";
  int status = 0;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : "";
  std::free(demangled);
  return name;
}

// Returns the part of `name` between `prefix` and `suffix`; empty if it does not have that form or
// the part is itself qualified.
std::string between(absl::string_view name, absl::string_view prefix, absl::string_view suffix) {
  if (!absl::ConsumePrefix(&name, prefix)) return "";
  const size_t end = name.find(suffix);
  if (end == absl::string_view::npos) return "";
  const absl::string_view part = name.substr(0, end);
  return absl::StrContains(part, "::") ? "" : std::string(part);
}

// The parts of LibTorch that one frame of a stack names. Kept for each return address, because
// dladdr() searches all symbols of a library, which takes 100 microseconds in LibTorch.
class Frames {
 public:
  // The result stays valid.
  const CallSite& at(void* address) {
    MutexLock lock(mutex_);
    const auto [frame, added] = frames_.try_emplace(address);
    if (added) {
      const std::string name = function_at(address);
      frame->second = {.op = between(name, "at::_ops::", "::call("),
                       .module = between(name, "torch::nn::", "Impl::forward("),
                       .optimizer = between(name, "torch::optim::", "::step(")};
    }
    return frame->second;
  }

 private:
  Mutex mutex_;
  std::unordered_map<void*, CallSite> frames_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

CallSite current_call_site() {
  static Frames& known = *new Frames;
  std::array<void*, kMaxFrames> addresses;
  const int count = backtrace(addresses.data(), kMaxFrames);
  CallSite site;
  for (int i = 0; i < count; ++i) {
    const CallSite& frame = known.at(addresses[i]);
    if (!frame.op.empty()) site.op = frame.op;
    if (site.module.empty()) site.module = frame.module;
    if (site.optimizer.empty()) site.optimizer = frame.optimizer;
  }
  return site;
}

}  // namespace trireme::internal
