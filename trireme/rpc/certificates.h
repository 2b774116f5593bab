#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/cluster_spec.h"

// Certificates as Trireme's peers use them, made and read with OpenSSL's libcrypto. For clusters
// that have no authority of their own; docs/security.md tells how to use another one.
namespace trireme {

struct KeyAndCertificate {
  std::string key;          // PEM
  std::string certificate;  // PEM
};

// Whom a certificate is for.
struct CertificateSubject {
  std::string uri;                 // who it is: rpc/peer.h
  std::vector<std::string> hosts;  // where it runs, for tools of others; names or addresses
};

struct CertificateValidity {
  // Counted from now. It begins in the past, so that a clock that is slow by hours does no harm.
  std::chrono::seconds from = -std::chrono::hours(24);
  std::chrono::seconds until = std::chrono::hours(24 * 365);
};

// Signs certificates. Not thread-safe.
class CertificateAuthority {
 public:
  static absl::StatusOr<CertificateAuthority> make(const CertificateValidity& validity = {
                                                       .until = std::chrono::hours(24 * 3650)});
  static absl::StatusOr<CertificateAuthority> from_pem(KeyAndCertificate own);

  const KeyAndCertificate& own() const { return own_; }
  absl::StatusOr<KeyAndCertificate> issue(const CertificateSubject& subject,
                                          const CertificateValidity& validity = {}) const;

 private:
  explicit CertificateAuthority(KeyAndCertificate own) : own_(std::move(own)) {}

  KeyAndCertificate own_;
};

struct CertificateFacts {
  std::vector<std::string> uris;  // among its alternative names
  std::chrono::system_clock::time_point until;
};

// Reads the first certificate; fails unless it and the key belong together.
absl::StatusOr<CertificateFacts> inspect_certificate(const KeyAndCertificate& pair);

// A folder of certificates for a cluster:
//
//   authority.key           signs; stays where it is and is given to no server
//   ca.pem                  what every peer trusts
//   worker-0/, ps-0/, …     each has ca.pem, certificate.pem and key.pem of one task
//   client/                 the same for programs that are no task
//
// If the folder has an authority already it is used again and every certificate is replaced: that
// is how they are renewed. Returns the folders written, by name.
absl::StatusOr<std::vector<std::string>> write_certificates(
    const std::string& folder, const ClusterSpec& spec, const CertificateValidity& validity = {});

inline constexpr char kAuthorityFile[] = "ca.pem";
inline constexpr char kCertificateFile[] = "certificate.pem";
inline constexpr char kKeyFile[] = "key.pem";
inline constexpr char kClientFolder[] = "client";

// The name of a task's folder: "worker-0".
std::string certificate_folder(const TaskId& task);

}  // namespace trireme
