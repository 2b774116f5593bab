#include "trireme/rpc/credentials.h"

#include <arpa/inet.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

// Names other than localhost count as not loopback: what they mean is not ours to say.
bool is_loopback(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

Credentials Credentials::loopback() {
  return Credentials(true);
}

Credentials Credentials::insecure() {
  return Credentials(false);
}

absl::Status Credentials::check_bind(const std::string& address) const {
  if (!loopback_only_ || is_loopback(address)) return absl::OkStatus();
  return make_status(
      ErrorCode::kPermissionDenied,
      absl::StrCat("refused to listen on ", address,
                   ", which other machines may reach: this server has no certificates. Use a "
                   "loopback address (127.0.0.1, localhost, [::1]), or pass --insecure if every "
                   "machine that can reach the address may be trusted"));
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::for_channel() const {
  return grpc::InsecureChannelCredentials();
}

std::shared_ptr<grpc::ServerCredentials> Credentials::for_server() const {
  return grpc::InsecureServerCredentials();
}

}  // namespace trireme
