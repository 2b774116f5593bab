#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/cluster_spec.h"

// Creates and reads the certificates of Trireme's peers, with OpenSSL's libcrypto. For clusters
// without an authority of their own. docs/security.md describes how to use another authority.
namespace trireme {

struct KeyAndCertificate {
  std::string key;          // PEM text
  std::string certificate;  // PEM text
};

// The peer that a certificate is issued to.
struct CertificateSubject {
  std::string uri;                 // the peer's URI (rpc/peer.h)
  std::vector<std::string> hosts;  // its host names or addresses, which Trireme does not check
};

// The time in which a certificate is valid, relative to now.
struct CertificateValidity {
  // Begins in the past, so that a clock which is slow by hours does no harm.
  std::chrono::seconds from = -std::chrono::hours(24);
  std::chrono::seconds until = std::chrono::hours(24 * 365);
};

// Signs certificates. Not thread-safe.
class CertificateAuthority {
 public:
  // Creates an authority with a new key, valid for ten years by default.
  static absl::StatusOr<CertificateAuthority> make(const CertificateValidity& validity = {
                                                       .until = std::chrono::hours(24 * 3650)});
  // Loads an existing authority. Fails if the certificate is not that of an authority.
  static absl::StatusOr<CertificateAuthority> from_pem(KeyAndCertificate own);

  // Returns the authority's own key and certificate.
  const KeyAndCertificate& own() const { return own_; }
  // Creates a key and a certificate for `subject`, signed by this authority.
  absl::StatusOr<KeyAndCertificate> issue(const CertificateSubject& subject,
                                          const CertificateValidity& validity = {}) const;

 private:
  explicit CertificateAuthority(KeyAndCertificate own) : own_(std::move(own)) {}

  KeyAndCertificate own_;
};

// The contents of a certificate that Trireme uses.
struct CertificateFacts {
  std::vector<std::string> uris;                // URIs among its alternative names
  std::chrono::system_clock::time_point until;  // time of its expiry
};

// Reads the first certificate of `pair`. Fails if the key does not belong to it.
absl::StatusOr<CertificateFacts> inspect_certificate(const KeyAndCertificate& pair);

// Writes the certificates of a cluster into a folder:
//
//   authority.key           the authority's key; signs certificates and is given to no server
//   ca.pem                  the authority's certificate, which every peer trusts
//   worker-0/, ps-0/, …     ca.pem, certificate.pem and key.pem of one task
//   client/                 the same three files for client programs
//
// If the folder has an authority already, it is kept and all other certificates are replaced. This
// renews them. Returns the names of the subfolders.
absl::StatusOr<std::vector<std::string>> write_certificates(
    const std::string& folder, const ClusterSpec& spec, const CertificateValidity& validity = {});

inline constexpr char kAuthorityFile[] = "ca.pem";
inline constexpr char kCertificateFile[] = "certificate.pem";
inline constexpr char kKeyFile[] = "key.pem";
inline constexpr char kClientFolder[] = "client";

// Returns the name of a task's subfolder: "worker-0".
std::string certificate_folder(const TaskId& task);

}  // namespace trireme
