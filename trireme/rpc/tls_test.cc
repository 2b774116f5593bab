#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "trireme/base/status.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/server.h"
#include "trireme/rpc/temporary_folder.h"

namespace trireme {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr char kServer[] = "/job:ps/task:0";
constexpr char kForAll[] = "/test.Test/ForAll";
constexpr char kForChief[] = "/test.Test/ForChief";

class RestrictedService final : public Service {
 public:
  std::vector<Method> methods() override {
    const Handler answer = [](ServerCall call) {
      call.respond(Message{call.peer() ? call.peer()->name : "nobody", {}});
    };
    return {{kForAll, Roles::all(), Repeats::kHarmless, answer},
            {kForChief, {Role::kChief}, Repeats::kHarmless, answer}};
  }
};

// Has an authority, and starts servers and clients with certificates that it signed.
class TlsTest : public testing::Test {
 protected:
  // Writes the files of a peer and loads them. from_files() does not check which authority signed
  // the certificate, so that the test sees the other side reject it.
  Credentials credentials(const std::string& uri, const CertificateAuthority& signer,
                          const CertificateValidity& validity = {}) {
    return value_or_throw(Credentials::from_files(files(uri, signer, validity)));
  }
  Credentials credentials(const std::string& uri) { return credentials(uri, authority_); }

  CertificateFiles files(const std::string& uri, const CertificateAuthority& signer,
                         const CertificateValidity& validity = {}) {
    const auto pair = value_or_throw(signer.issue({uri, {}}, validity));
    const std::string name = absl::StrCat(++made_);
    folder_.write(name + ".ca", authority_.own().certificate);
    folder_.write(name + ".pem", pair.certificate);
    folder_.write(name + ".key", pair.key);
    const std::string base = folder_.path() + "/" + name;
    return {base + ".ca", base + ".pem", base + ".key"};
  }

  std::unique_ptr<RpcServer> start(const Credentials& credentials) {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<RestrictedService>());
    return value_or_throw(RpcServer::start(
        {.address = "127.0.0.1:0", .task = kServer, .incarnation = 1, .credentials = credentials},
        std::move(services)));
  }

  static Response call(const RpcServer& server, const Credentials& credentials,
                       const std::string& method = kForAll, const std::string& task = kServer) {
    Channel channel({.address = server.address(), .task = task, .credentials = credentials});
    return channel.call(method, {}, {.deadline = after(seconds(10))});
  }

  TemporaryFolder folder_;
  CertificateAuthority authority_ = value_or_throw(CertificateAuthority::make());
  int made_ = 0;
};

TEST_F(TlsTest, BothSidesIdentifyEachOther) {
  auto server = start(credentials("trireme://ps/0"));
  EXPECT_EQ(value_or_throw(call(*server, credentials("trireme://worker/3"))).body,
            "/job:worker/task:3");
  EXPECT_EQ(value_or_throw(call(*server, credentials("trireme://client"))).body, "client");
  // Without an expected task, any task will do.
  EXPECT_TRUE(call(*server, credentials("trireme://client"), kForAll, "").ok());
}

TEST_F(TlsTest, RejectsARoleThatMayNotCallTheMethod) {
  auto server = start(credentials("trireme://ps/0"));
  EXPECT_TRUE(call(*server, credentials("trireme://chief/0"), kForChief).ok());
  testing::internal::CaptureStderr();
  for (const char* uri : {"trireme://worker/1", "trireme://ps/0", "trireme://client"}) {
    const absl::Status status = call(*server, credentials(uri), kForChief).status();
    EXPECT_EQ(error_code(status), ErrorCode::kPermissionDenied) << uri;
    EXPECT_THAT(describe(status), HasSubstr(Peer::from_uri(uri)->name));
    EXPECT_THAT(describe(status), HasSubstr("only chief may call it"));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("/job:ps/task:0: rejected /test.Test/ForChief from /job:worker/task:1 at"));
}

TEST_F(TlsTest, RejectsACertificateWithoutARole) {
  auto server = start(credentials("trireme://ps/0"));
  const CertificateFiles files = this->files("https://example.org", authority_);
  EXPECT_FALSE(Credentials::from_files(files).ok());
  // A hostile peer may load good files at its start and replace them later.
  const CertificateFiles good = this->files("trireme://worker/0", authority_);
  const Credentials changing = value_or_throw(Credentials::from_files(good));
  const auto move = [](const std::string& from, const std::string& to) {
    std::filesystem::rename(from, to);
  };
  move(files.key, good.key);
  move(files.certificate, good.certificate);
  absl::Status status;
  for (const Time limit = after(seconds(30)); status.ok() && Clock::real().now() < limit;) {
    status = call(*server, changing).status();
  }
  EXPECT_EQ(error_code(status), ErrorCode::kUnauthenticated);
  EXPECT_THAT(describe(status), HasSubstr("names no role"));
}

TEST_F(TlsTest, RejectsAClientWithoutATrustedCertificate) {
  auto server = start(credentials("trireme://ps/0"));
  EXPECT_EQ(error_code(call(*server, Credentials::insecure()).status()),
            ErrorCode::kTaskUnreachable);
  const auto other = value_or_throw(CertificateAuthority::make());
  testing::internal::CaptureStderr();
  const absl::Status status = call(*server, credentials("trireme://chief/0", other)).status();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("certificate verify failed"));
  EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable);
  EXPECT_THAT(describe(status), HasSubstr("rejected this side's certificate"));
  EXPECT_TRUE(call(*server, credentials("trireme://chief/0")).ok());
}

TEST_F(TlsTest, AClientRejectsAServerThatIsNotTheExpectedTask) {
  const Credentials client = credentials("trireme://client");
  {
    auto server = start(credentials("trireme://ps/1"));  // says it is ps 0
    const absl::Status status = call(*server, client).status();
    EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable);
    EXPECT_THAT(describe(status), HasSubstr("certificate is that of /job:ps/task:1, not of "
                                            "/job:ps/task:0"));
  }
  {
    auto server = start(credentials("trireme://client"));
    EXPECT_FALSE(call(*server, client, kForAll, "").ok());
  }
  {
    const auto other = value_or_throw(CertificateAuthority::make());
    auto server = start(credentials("trireme://ps/0", other));
    EXPECT_FALSE(call(*server, client).ok());
  }
  {
    auto server = start(Credentials::loopback());
    EXPECT_FALSE(call(*server, client).ok());
  }
}

TEST_F(TlsTest, ACallerCannotClaimAnotherTask) {
  auto server = start(credentials("trireme://ps/0"));
  Channel honest({.address = server->address(),
                  .task = kServer,
                  .caller_task = "/job:worker/task:3",
                  .credentials = credentials("trireme://worker/3")});
  EXPECT_TRUE(honest.hello(after(seconds(10))).ok());
  Channel liar({.address = server->address(),
                .task = kServer,
                .caller_task = "/job:chief/task:0",
                .credentials = credentials("trireme://worker/3")});
  EXPECT_EQ(error_code(liar.hello(after(seconds(10))).status()), ErrorCode::kPermissionDenied);
}

TEST_F(TlsTest, CertificatesAreRenewedWithoutARestart) {
  // The files change while the server runs.
  const CertificateFiles own = files("trireme://ps/0", authority_);
  auto server = start(value_or_throw(Credentials::from_files(own)));
  const Credentials client = credentials("trireme://client");
  EXPECT_TRUE(call(*server, client).ok());
  const CertificateFiles next = files("trireme://ps/7", authority_);
  std::filesystem::rename(next.key, own.key);
  std::filesystem::rename(next.certificate, own.certificate);
  // The new certificate names another task, so clients that expect ps 7 succeed once it is used.
  absl::Status status = absl::UnknownError("");
  for (const Time limit = after(seconds(30)); !status.ok() && Clock::real().now() < limit;) {
    status = call(*server, client, kForAll, "/job:ps/task:7").status();
  }
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(TlsTest, RejectsAnExpiredCertificate) {
  auto server = start(credentials("trireme://ps/0"));
  const CertificateFiles good = files("trireme://chief/0", authority_);
  const Credentials chief = value_or_throw(Credentials::from_files(good));
  EXPECT_TRUE(call(*server, chief).ok());
  const CertificateFiles expired =
      files("trireme://chief/0", authority_, {.from = -hours(48), .until = -hours(24)});
  EXPECT_EQ(error_code(Credentials::from_files(expired).status()), ErrorCode::kFailedPrecondition);
  std::filesystem::rename(expired.key, good.key);
  std::filesystem::rename(expired.certificate, good.certificate);
  absl::Status status;
  for (const Time limit = after(seconds(30)); status.ok() && Clock::real().now() < limit;) {
    status = call(*server, chief).status();
  }
  EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable);
}

}  // namespace
}  // namespace trireme
