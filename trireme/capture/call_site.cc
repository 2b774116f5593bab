#include "trireme/capture/call_site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

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

}  // namespace

CallSite current_call_site() {
  std::array<void*, kMaxFrames> frames;
  const int count = backtrace(frames.data(), kMaxFrames);
  CallSite site;
  for (int i = 0; i < count; ++i) {
    const std::string name = function_at(frames[i]);
    if (name.empty()) continue;
    if (std::string op = between(name, "at::_ops::", "::call("); !op.empty()) {
      site.op = std::move(op);
    }
    if (site.module.empty()) site.module = between(name, "torch::nn::", "Impl::forward(");
    if (site.optimizer.empty()) site.optimizer = between(name, "torch::optim::", "::step(");
  }
  return site;
}

}  // namespace trireme::internal
