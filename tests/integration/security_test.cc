// Only peers with a valid certificate of the cluster reach a server, a method accepts its roles
// only, and others cannot replay a recorded request. The tests run real processes of the trireme
// command.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/raw_call.h"

namespace trireme {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

const TaskId kWorker = {"worker", 0};

// Sends an EndJob request as raw bytes with a chosen prefix. A Channel never sends the same prefix
// twice, as an attacker would.
absl::StatusOr<Prefix> send_end_job(const std::string& address,
                                    std::shared_ptr<grpc::ChannelCredentials> credentials,
                                    const Prefix& prefix) {
  auto writer = value_or_throw(MessageWriter::make(prefix, {}));
  grpc::ByteBuffer response;
  const grpc::Status status =
      call_raw(address, std::move(credentials), "/trireme.Server/EndJob",
               internal::to_byte_buffer(writer.next_frame(writer.bytes_left())), &response);
  if (!status.ok()) return internal::from_grpc(status);
  MessageReader reader({});
  TRIREME_RETURN_IF_ERROR(internal::read_frame(response, reader).status());
  return reader.prefix();
}

class SecurityTest : public testing::Test {
 protected:
  absl::Status end_job_as(const Credentials& credentials) {
    Channel channel({.address = cluster_.spec().address(kWorker),
                     .task = kWorker.to_string(),
                     .credentials = credentials});
    return end_job(channel, "a test", after(seconds(10))).status();
  }

  absl::Status describe_as(const Credentials& credentials) {
    Channel channel({.address = cluster_.spec().address(kWorker),
                     .task = kWorker.to_string(),
                     .credentials = credentials});
    return channel.hello(after(seconds(10))).status();
  }

  // Makes credentials for `uri`, signed by `signer` or by default by the cluster's own authority.
  Credentials issue(const std::string& uri, std::optional<CertificateAuthority> signer = {},
                    const CertificateValidity& validity = {}) {
    if (!signer) signer = authority();
    const auto pair = value_or_throw(signer->issue({uri, {}}, validity));
    const std::string name = "made" + std::to_string(++made_);
    folder_.write(name + ".pem", pair.certificate);
    folder_.write(name + ".key", pair.key);
    const std::string base = folder_.path() + "/" + name;
    return value_or_throw(
        Credentials::from_files({folder_.path() + "/ca.pem", base + ".pem", base + ".key"}));
  }

  CertificateAuthority authority() const {
    return value_or_throw(
        CertificateAuthority::from_pem({folder_.read("authority.key"), folder_.read("ca.pem")}));
  }

  bool log_has(const std::string& text) {
    return absl::StrJoin(cluster_.logs(kWorker), "\n").find(text) != std::string::npos;
  }
  // Waits for the text, because the log of another process arrives with a delay.
  void expect_logged(const std::string& text) {
    for (const Time limit = after(seconds(10)); !log_has(text) && Clock::real().now() < limit;) {
    }
    EXPECT_TRUE(log_has(text)) << absl::StrJoin(cluster_.logs(kWorker), "\n");
  }

  int made_ = 0;
  TemporaryFolder folder_;
  ProcessCluster cluster_{{{.workers = 2, .ps = 1}, {}, folder_.path()}};
};

TEST_F(SecurityTest, OnlyCertificatesOfTheClusterGetIn) {
  EXPECT_TRUE(describe_as(cluster_.credentials()).ok());
  EXPECT_TRUE(describe_as(issue("trireme://ps/0")).ok());

  EXPECT_EQ(error_code(describe_as(Credentials::insecure())), ErrorCode::kTaskUnreachable);
  expect_logged("a TLS connection was refused");
  // TLS without a client certificate.
  EXPECT_TRUE(
      absl::IsUnavailable(send_end_job(cluster_.spec().address(kWorker),
                                       grpc::SslCredentials({folder_.read("ca.pem"), "", ""}), {})
                              .status()));
  expect_logged("peer did not return a certificate");
  const auto another = value_or_throw(CertificateAuthority::make());
  EXPECT_EQ(error_code(describe_as(issue("trireme://chief/0", another))),
            ErrorCode::kTaskUnreachable);
  expect_logged("certificate verify failed");
  // This certificate is valid when it is read, and expires two seconds later.
  const Credentials expiring =
      issue("trireme://chief/0", std::nullopt, {.from = -hours(48), .until = seconds(2)});
  absl::Status status;
  for (const Time limit = after(seconds(20)); status.ok() && Clock::real().now() < limit;) {
    status = describe_as(expiring);
  }
  EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable);
}

TEST_F(SecurityTest, AMethodRejectsOtherRoles) {
  const absl::Status status = end_job_as(issue("trireme://worker/1"));
  EXPECT_EQ(error_code(status), ErrorCode::kPermissionDenied);
  EXPECT_THAT(describe(status), HasSubstr("/job:worker/task:1"));
  expect_logged("/job:worker/task:0: rejected /trireme.Server/EndJob from /job:worker/task:1 at");
  EXPECT_TRUE(end_job_as(issue("trireme://chief/0")).ok());
}

TEST_F(SecurityTest, ARequestRunsOnceAndCannotBeReplayedByOthers) {
  const std::string address = cluster_.spec().address(kWorker);
  const auto chief = issue("trireme://chief/0").for_channel(kWorker.to_string());
  const auto mallory = issue("trireme://client/mallory").for_channel(kWorker.to_string());
  const Prefix request = {.request_id = 41,
                          .sender = 0xabc,
                          .receiver = cluster_.describe(kWorker).incarnation,
                          .one_frame = true};
  const auto times_done = [&] {
    const std::vector<std::string> lines = cluster_.logs(kWorker);
    return std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("the job has ended") != line.npos;
    });
  };
  EXPECT_EQ(value_or_throw(send_end_job(address, chief, request)).request_id, 41u);
  // The same peer gets the first answer again, and the request does not run twice.
  EXPECT_EQ(value_or_throw(send_end_job(address, chief, request)).request_id, 41u);
  // Another peer that has recorded the bytes is rejected.
  const absl::Status stolen = send_end_job(address, mallory, request).status();
  EXPECT_EQ(error_code(stolen), ErrorCode::kPermissionDenied);
  expect_logged("which is /job:chief/task:0, was sent by client mallory");
  expect_logged("the job has ended");
  EXPECT_EQ(times_done(), 1);
  // Another incarnation of the server rejects it, too.
  cluster_.restart(kWorker);
  EXPECT_EQ(error_code(send_end_job(address, chief, request).status()),
            ErrorCode::kIncarnationChanged);
}

TEST_F(SecurityTest, StatusNeedsAClientsCertificate) {
  const auto status = [&](std::vector<std::string> flags) {
    std::vector<std::string> command = {trireme_binary(), "status", "--timeout", "5"};
    command.insert(command.end(), flags.begin(), flags.end());
    return value_or_throw(run_process(
        {.argv = command, .environment = {{"TF_CONFIG", cluster_.tf_config({"chief", 0})}}},
        after(seconds(30))));
  };
  const CompletedProcess with = status({"--certs", folder_.path()});
  EXPECT_TRUE(with.status.ok()) << with.stderr_text;
  EXPECT_THAT(with.stdout_text, HasSubstr("3 of 3 tasks answer"));
  EXPECT_THAT(status({}).stdout_text, HasSubstr("0 of 3 tasks answer"));
}

TEST_F(SecurityTest, RenewalNeedsNoRestart) {
  const uint64_t before = cluster_.describe(kWorker).incarnation;
  // Renews all certificates, including those of this client.
  throw_if_error(write_certificates(folder_.path(), cluster_.spec()).status());
  cluster_.wait_until_up();
  EXPECT_EQ(cluster_.describe(kWorker).incarnation, before);
}

// Makes certificates with openssl, as docs/security.md describes it for an authority of one's own.
TEST(Certs, AnyAuthorityCanIssueThem) {
  const TemporaryFolder folder;
  folder.write("make", R"(set -e
    openssl req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout authority.key \
      -subj "/CN=our own authority" -days 3650 -out ca.pem 2>/dev/null
    make() { # FOLDER URI
      mkdir $1
      openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1/key.pem -subj /CN=$1 \
        -out $1/request.pem 2>/dev/null
      openssl x509 -req -in $1/request.pem -CA ca.pem -CAkey authority.key -days 365 -out $1/certificate.pem \
        -extfile <(echo "
        subjectAltName=URI:$2
        keyUsage=critical,digitalSignature
        extendedKeyUsage=serverAuth,clientAuth") 2>/dev/null
      cp ca.pem $1
    }
    make worker-0 trireme://worker/0
    make worker-1 trireme://worker/1
    make client trireme://client/me)");
  const CompletedProcess made = value_or_throw(
      run_process({.argv = {"bash", "make"}, .directory = folder.path()}, after(seconds(60))));
  ASSERT_TRUE(made.status.ok()) << made.stderr_text;
  ProcessCluster cluster({{.workers = 2, .ps = 0}, {}, folder.path()});
  EXPECT_NE(cluster.describe(kWorker).incarnation, 0u);
}

TEST(Certs, InitMakesCertificatesThatServersAccept) {
  const TemporaryFolder folder;
  folder.write("cluster.json", "{\"worker\": [\"127.0.0.1:1\"], \"ps\": [\"127.0.0.1:2\"]}");
  const auto init = [&](std::vector<std::string> flags) {
    std::vector<std::string> command = {trireme_binary(), "certs",
                                        "init",           folder.path() + "/certs",
                                        "--cluster",      folder.path() + "/cluster.json"};
    command.insert(command.end(), flags.begin(), flags.end());
    return value_or_throw(run_process({.argv = command}, after(seconds(30))));
  };
  const CompletedProcess done = init({});
  EXPECT_TRUE(done.status.ok()) << done.stderr_text;
  EXPECT_THAT(done.stdout_text,
              HasSubstr("certs: made an authority, and wrote the certificates of 2 tasks and of "
                        "clients, valid for 365 days\n"));
  EXPECT_TRUE(Credentials::from_folder(folder.path() + "/certs", TaskId{"ps", 0}).ok());
  EXPECT_THAT(init({}).stdout_text, HasSubstr("certs: kept the authority, and wrote the "));
  EXPECT_EQ(init({"--days", "0"}).status.code, 2);
}

}  // namespace
}  // namespace trireme
