#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/rpc/peer.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace trireme {

// PEM files. They are read again within seconds after they change: who renews a certificate puts
// the new files in place of the old ones, and connections made from then on use them.
struct CertificateFiles {
  std::string authority;    // whom to trust
  std::string certificate;  // who this is, with the authorities between it and the above
  std::string key;
};

// Where every channel and every port gets its security from; nothing else in Trireme makes gRPC
// credentials. A value; thread-safe.
class Credentials {
 public:
  // No certificates: a server may bind loopback addresses only.
  static Credentials loopback();
  // No certificates, any address: whoever reaches a port commands the server. Only by explicit
  // wish.
  static Credentials insecure();
  // Mutual TLS. Fails when the files cannot be read, do not belong together, have expired, or name
  // no role.
  static absl::StatusOr<Credentials> from_files(const CertificateFiles& files);
  // The files of one peer in a folder: ca.pem, certificate.pem and key.pem, in the folder itself or
  // in the peer's own folder in it, as write_certificates makes them. No task: those of a client.
  static absl::StatusOr<Credentials> from_folder(const std::string& folder,
                                                 const std::optional<TaskId>& task);
  // Of a program that is no task: those in the folder. An empty name: no certificates, since
  // whoever is to be reached beyond loopback has been told to do without, too.
  static absl::StatusOr<Credentials> of_program(const std::string& folder);

  bool is_secure() const { return tls_ != nullptr; }
  // Who this side is, by its certificate.
  std::optional<Peer> identity() const;

  // Whether a server may listen there. An address is host:port.
  absl::Status check_bind(const std::string& address) const;

  // With certificates the server has to prove that it is this task; an empty task: any task.
  std::shared_ptr<grpc::ChannelCredentials> for_channel(const std::string& task) const;
  std::shared_ptr<grpc::ServerCredentials> for_server() const;

 private:
  struct Tls;

  explicit Credentials(bool loopback_only) : loopback_only_(loopback_only) {}

  bool loopback_only_;
  std::shared_ptr<const Tls> tls_;
};

namespace internal {

// Who the peer of a connection is: the certificate's one URI that names a role. Nobody when there
// is none or more than one.
std::optional<Peer> peer_of(const grpc::AuthContext& context);

}  // namespace internal
}  // namespace trireme
