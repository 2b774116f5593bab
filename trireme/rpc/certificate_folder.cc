#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/cluster/address.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/file_text.h"
#include "trireme/rpc/peer.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr char kAuthorityKeyFile[] = "authority.key";
constexpr int kPrivate = 0600;
constexpr int kReadable = 0644;

// Returns the error for a failed system call, by errno.
absl::Status cannot(const std::string& what, const fs::path& path) {
  return make_status(ErrorCode::kFailedPrecondition,
                     absl::StrCat("cannot ", what, " ", path.string(), ": ", strerror(errno)));
}

// Replaces a file atomically, so that a concurrent reader sees either the old or the new contents.
// The file has its mode from the start: a key is never readable by others.
absl::Status write_file(const fs::path& path, const std::string& text, int mode) {
  const fs::path fresh = path.string() + ".new";
  unlink(fresh.c_str());
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (file < 0) return cannot("write", fresh);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t part = write(file, text.data() + done, text.size() - done);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) {
      const absl::Status status = cannot("write", fresh);
      close(file);
      return status;
    }
    done += part;
  }
  fsync(file);
  close(file);
  if (rename(fresh.c_str(), path.c_str()) != 0) return cannot("write", path);
  return absl::OkStatus();
}

absl::Status make_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return cannot("make the folder", path);
}

// Loads the authority of a folder, or creates one if the folder has neither key nor certificate.
absl::StatusOr<CertificateAuthority> authority_of(const fs::path& folder) {
  const fs::path certificate = folder / kAuthorityFile, key = folder / kAuthorityKeyFile;
  if (!fs::exists(certificate) && !fs::exists(key)) {
    TRIREME_ASSIGN_OR_RETURN(CertificateAuthority made, CertificateAuthority::make());
    TRIREME_RETURN_IF_ERROR(write_file(key, made.own().key, kPrivate));
    TRIREME_RETURN_IF_ERROR(write_file(certificate, made.own().certificate, kReadable));
    return made;
  }
  KeyAndCertificate own;
  TRIREME_ASSIGN_OR_RETURN(own.certificate, internal::read_text_file(certificate.string()));
  TRIREME_ASSIGN_OR_RETURN(own.key, internal::read_text_file(key.string()));
  return CertificateAuthority::from_pem(std::move(own));
}

// Issues a certificate and writes the three files of a peer. The key is written before the
// certificate, as docs/security.md asks of anyone who renews a certificate.
absl::Status write_pair(const fs::path& folder, const CertificateAuthority& authority,
                        const CertificateSubject& subject, const CertificateValidity& validity) {
  TRIREME_ASSIGN_OR_RETURN(const KeyAndCertificate pair, authority.issue(subject, validity));
  TRIREME_RETURN_IF_ERROR(make_folder(folder));
  TRIREME_RETURN_IF_ERROR(
      write_file(folder / kAuthorityFile, authority.own().certificate, kReadable));
  TRIREME_RETURN_IF_ERROR(write_file(folder / kKeyFile, pair.key, kPrivate));
  return write_file(folder / kCertificateFile, pair.certificate, kReadable);
}

}  // namespace

std::string certificate_folder(const TaskId& task) {
  return absl::StrCat(task.job, "-", task.index);
}

absl::StatusOr<std::vector<std::string>> write_certificates(const std::string& folder,
                                                            const ClusterSpec& spec,
                                                            const CertificateValidity& validity) {
  TRIREME_RETURN_IF_ERROR(make_folder(folder));
  TRIREME_ASSIGN_OR_RETURN(const CertificateAuthority authority, authority_of(folder));
  std::vector<std::string> written;
  for (const TaskId& task : spec.all_tasks()) {
    const CertificateSubject subject = {Peer::uri_of(task),
                                        {internal::Address::parse_own(spec.address(task)).host}};
    written.push_back(certificate_folder(task));
    TRIREME_RETURN_IF_ERROR(
        write_pair(fs::path(folder) / written.back(), authority, subject, validity));
  }
  written.push_back(kClientFolder);
  TRIREME_RETURN_IF_ERROR(
      write_pair(fs::path(folder) / kClientFolder, authority, {kClientUri, {}}, validity));
  return written;
}

}  // namespace trireme
