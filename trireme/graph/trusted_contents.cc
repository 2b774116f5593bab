#include "trireme/graph/trusted_contents.h"

namespace trireme::internal {
namespace {

thread_local bool trusts_devices = false;

}  // namespace

TrustDeviceContents::TrustDeviceContents(bool trusted) : before_(trusts_devices) {
  trusts_devices = trusted;
}

TrustDeviceContents::~TrustDeviceContents() {
  trusts_devices = before_;
}

bool has_trusted_contents(const at::Tensor& tensor) {
  return trusts_devices && !tensor.is_cpu();
}

}  // namespace trireme::internal
