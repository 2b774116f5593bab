#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace trireme {

// Where every channel and every port gets its security from; nothing else in Trireme makes gRPC
// credentials. A value; thread-safe.
class Credentials {
 public:
  // No certificates: a server may bind loopback addresses only.
  static Credentials loopback();
  // No certificates, any address: whoever reaches a port commands the server. Only by explicit
  // wish.
  static Credentials insecure();

  // Whether a server may listen there. An address is host:port.
  absl::Status check_bind(const std::string& address) const;

  std::shared_ptr<grpc::ChannelCredentials> for_channel() const;
  std::shared_ptr<grpc::ServerCredentials> for_server() const;

 private:
  explicit Credentials(bool loopback_only) : loopback_only_(loopback_only) {}

  bool loopback_only_;
};

}  // namespace trireme
