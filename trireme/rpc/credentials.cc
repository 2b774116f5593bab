#include "trireme/rpc/credentials.h"

#include <arpa/inet.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/file_text.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

// Interval at which the files are read again, which costs three reads of small files.
constexpr unsigned kRefreshSeconds = 2;
// A process that starts less than this time before its certificate expires logs a warning.
constexpr auto kWarnBeforeEnd = std::chrono::hours(24 * 14);

// Returns true for loopback addresses and localhost. Other names count as not loopback, since they
// may resolve to anything.
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

// Returns the peer whose role one of the URIs names. A certificate with two such URIs is ambiguous
// and gets nullopt, like one with none.
template <typename Uris>
std::optional<Peer> peer_named_by(const Uris& uris) {
  std::optional<Peer> found;
  for (const auto& uri : uris) {
    std::optional<Peer> peer = Peer::from_uri(std::string(uri.data(), uri.size()));
    if (!peer) continue;
    if (found) return std::nullopt;
    found = std::move(peer);
  }
  return found;
}

// Checks that the server's certificate is that of the expected task. gRPC calls it after it has
// verified that a trusted authority signed the certificate. Host names are not checked: a cluster
// spec names tasks, and one task may be reached by many names.
class TaskVerifier final : public ExternalCertificateVerifier {
 public:
  explicit TaskVerifier(std::string task) : task_(std::move(task)) { internal::hand_over(this); }
  ~TaskVerifier() override { internal::take_over(this); }  // runs on a thread of gRPC

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const std::optional<Peer> peer = peer_named_by(request->uri_names());
    if (peer && peer->is_task() && (task_.empty() || peer->name == task_)) {
      *status = grpc::Status::OK;
    } else {
      // connect.cc searches for these words.
      *status = grpc::Status(
          grpc::StatusCode::UNAUTHENTICATED,
          absl::StrCat("the server's certificate is that of ", peer ? peer->name : "no task",
                       ", not of ", task_.empty() ? "a task" : task_));
    }
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string task_;
};

}  // namespace

struct Credentials::Tls {
  Peer identity;
  std::shared_ptr<FileWatcherCertificateProvider> provider;  // reads the files periodically
};

Credentials Credentials::loopback() {
  return Credentials(true);
}

Credentials Credentials::insecure() {
  return Credentials(false);
}

absl::StatusOr<Credentials> Credentials::from_files(const CertificateFiles& files) {
  KeyAndCertificate pair;
  TRIREME_ASSIGN_OR_RETURN(const std::string authority, internal::read_text_file(files.authority));
  TRIREME_ASSIGN_OR_RETURN(pair.certificate, internal::read_text_file(files.certificate));
  TRIREME_ASSIGN_OR_RETURN(pair.key, internal::read_text_file(files.key));
  const Origin origin = {"", absl::StrCat("certificate ", files.certificate)};
  auto facts = inspect_certificate(pair);
  if (!facts.ok()) return with_origin(facts.status(), origin);
  const std::optional<Peer> identity = peer_named_by(facts->uris);
  if (!identity) {
    return make_status(ErrorCode::kInvalidArgument,
                       "it names no role: its alternative names must contain exactly one URI such "
                       "as trireme://worker/0 or trireme://client; `trireme certs init` makes such "
                       "certificates",
                       origin);
  }
  if (!absl::StrContains(authority, "BEGIN CERTIFICATE")) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat(files.authority, " does not contain a certificate to trust"),
                       origin);
  }
  const auto left = facts->until - std::chrono::system_clock::now();
  if (left <= std::chrono::seconds(0)) {
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("it expired ", format_duration(std::chrono::duration_cast<Duration>(-left)),
                     " ago; renew it, for example with `trireme certs init`"),
        origin);
  }
  if (left < kWarnBeforeEnd) {
    log_warning("the certificate ", files.certificate, " of ", identity->name, " expires in ",
                format_duration(std::chrono::duration_cast<Duration>(left)), "; renew it");
  }
  Credentials credentials(false);
  credentials.tls_ = std::make_shared<Tls>(
      Tls{*identity, std::make_shared<FileWatcherCertificateProvider>(
                         files.key, files.certificate, files.authority, kRefreshSeconds)});
  return credentials;
}

absl::StatusOr<Credentials> Credentials::from_folder(const std::string& folder,
                                                     const std::optional<TaskId>& task) {
  namespace fs = std::filesystem;
  fs::path own = folder;
  std::error_code ignored;
  if (!fs::exists(own / kCertificateFile, ignored)) {
    own /= task ? certificate_folder(*task) : std::string(kClientFolder);
  }
  TRIREME_ASSIGN_OR_RETURN(Credentials credentials, from_files({(own / kAuthorityFile).string(),
                                                                (own / kCertificateFile).string(),
                                                                (own / kKeyFile).string()}));
  const Peer identity = *credentials.identity();
  if (task && identity.name != task->to_string()) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("the certificate in ", own.string(), " is that of ",
                                    identity.name, "; this process is ", task->to_string()),
                       {task->to_string(), ""});
  }
  return credentials;
}

absl::StatusOr<Credentials> Credentials::of_program(const std::string& folder) {
  return folder.empty() ? insecure() : from_folder(folder, {});
}

absl::StatusOr<Credentials> Credentials::of_server(const std::string& folder, bool insecure,
                                                   const TaskId& task) {
  if (folder.empty()) return insecure ? Credentials::insecure() : loopback();
  if (!insecure) return from_folder(folder, task);
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat(task.to_string(), " was given both certificates (", folder,
                                  ") and the option insecure, which does without them; use one of "
                                  "the two"),
                     {task.to_string(), ""});
}

std::optional<Peer> Credentials::identity() const {
  if (!tls_) return std::nullopt;
  return tls_->identity;
}

absl::Status Credentials::check_bind(const std::string& address) const {
  if (!loopback_only_ || is_loopback(address)) return absl::OkStatus();
  return make_status(
      ErrorCode::kPermissionDenied,
      absl::StrCat("refused to listen on ", address,
                   ", which other machines may reach: this server has no certificates. Give it "
                   "some with --certs (`trireme certs init` makes them), use a loopback address "
                   "(127.0.0.1, localhost, [::1]), or pass --insecure if every machine that can "
                   "reach the address may be trusted"));
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::for_channel(const std::string& task) const {
  if (!tls_) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(tls_->provider);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<TaskVerifier>(task));
  options.set_check_call_host(false);
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> Credentials::for_server() const {
  if (!tls_) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(tls_->provider);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::optional<Peer> internal::peer_of(const grpc::AuthContext& context) {
  return peer_named_by(context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME));
}

}  // namespace trireme
