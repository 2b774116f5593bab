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

// Paths of PEM files. The files are read again within seconds after they change. To renew a
// certificate, put new files in place of the old ones; later connections use them.
struct CertificateFiles {
  std::string authority;    // certificates of the trusted authorities
  std::string certificate;  // this side's certificate, then those of intermediate authorities
  std::string key;          // the key of the certificate, without a passphrase
};

// The security of channels and servers. Nothing else in Trireme creates gRPC credentials. A value
// that is cheap to copy. Thread-safe.
class Credentials {
 public:
  // Uses no certificates. A server may bind loopback addresses only.
  static Credentials loopback();
  // Uses no certificates and permits any address. Anyone who reaches a port controls the server, so
  // this must be an explicit choice of the user.
  static Credentials insecure();
  // Uses mutual TLS. Fails if the files cannot be read, do not belong together, have expired, or do
  // not name exactly one role.
  static absl::StatusOr<Credentials> from_files(const CertificateFiles& files);
  // Uses the files ca.pem, certificate.pem and key.pem of a task, or of a client program if there
  // is no task. They are in the folder itself or in the peer's own subfolder, as
  // write_certificates() creates them. Fails if the certificate is not the task's.
  static absl::StatusOr<Credentials> from_folder(const std::string& folder,
                                                 const std::optional<TaskId>& task);
  // Uses the files of a client program in a folder. Without a folder (""), uses no certificates and
  // permits any address: a server beyond loopback that has none was started with --insecure.
  static absl::StatusOr<Credentials> of_program(const std::string& folder);
  // Uses the certificates of a task in a folder; without a folder none, on loopback addresses only
  // unless `insecure`. Fails if both are given.
  static absl::StatusOr<Credentials> of_server(const std::string& folder, bool insecure,
                                               const TaskId& task);

  // Returns true if this side uses certificates.
  bool is_secure() const { return tls_ != nullptr; }
  // Returns this side's identity by its certificate; nullopt without one.
  std::optional<Peer> identity() const;

  // Returns an error if a server with these credentials may not listen on `address` (host:port).
  absl::Status check_bind(const std::string& address) const;

  // Returns the credentials of a channel. With certificates, the server must prove that it is
  // `task`, or any task if `task` is empty.
  std::shared_ptr<grpc::ChannelCredentials> for_channel(const std::string& task) const;
  // Returns the credentials of a server. With certificates, clients must have one too.
  std::shared_ptr<grpc::ServerCredentials> for_server() const;

 private:
  struct Tls;

  explicit Credentials(bool loopback_only) : loopback_only_(loopback_only) {}

  bool loopback_only_;
  std::shared_ptr<const Tls> tls_;
};

namespace internal {

// Returns the peer of a connection by the one URI of its certificate that names a role; nullopt if
// there is none or more than one.
std::optional<Peer> peer_of(const grpc::AuthContext& context);

}  // namespace internal
}  // namespace trireme
