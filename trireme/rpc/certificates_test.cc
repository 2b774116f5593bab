#include "trireme/rpc/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "trireme/base/status.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/temporary_folder.h"

namespace trireme {
namespace {

using std::chrono::hours;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Peer, ParsesRolesAndTasksFromUris) {
  EXPECT_EQ(Peer::from_uri("trireme://worker/12"), (Peer{Role::kWorker, "/job:worker/task:12"}));
  EXPECT_EQ(Peer::from_uri("trireme://client"), (Peer{Role::kClient, "client"}));
  EXPECT_EQ(Peer::from_uri("trireme://client/ada@lab"), (Peer{Role::kClient, "client ada@lab"}));
  for (const char* uri :
       {"", "trireme://", "trireme://worker", "trireme://worker/", "trireme://worker/-1",
        "trireme://worker/01", "trireme://worker/1/2", "trireme://master/0", "https://worker/0",
        "trireme://worker/99999999999", "trireme://client/", "trireme://client/a\nb",
        "trireme://worker/ 1", "trireme://Worker/1"}) {
    EXPECT_EQ(Peer::from_uri(uri), std::nullopt) << uri;
  }
  EXPECT_EQ(Peer::uri_of({"ps", 3}), "trireme://ps/3");
  EXPECT_THROW(Peer::uri_of({"master", 0}), Error);
}

TEST(Roles, ContainAndListTheirRoles) {
  constexpr Roles kSome = {Role::kChief, Role::kClient};
  EXPECT_TRUE(kSome.contains(Role::kClient));
  EXPECT_FALSE(kSome.contains(Role::kWorker));
  EXPECT_EQ(kSome.to_string(), "chief, client");
  EXPECT_EQ(Roles::all().to_string(), "chief, worker, ps, evaluator, client");
}

TEST(Certificates, HaveTheUriAndExpiryOfTheSubject) {
  const auto authority = value_or_throw(CertificateAuthority::make());
  const auto pair = value_or_throw(
      authority.issue({"trireme://ps/1", {"10.0.0.1", "host.example"}}, {.until = hours(10)}));
  const CertificateFacts facts = value_or_throw(inspect_certificate(pair));
  EXPECT_THAT(facts.uris, ElementsAre("trireme://ps/1"));
  const auto left = facts.until - std::chrono::system_clock::now();
  EXPECT_LE(left, hours(10));
  EXPECT_GT(left, hours(9));

  const auto other = value_or_throw(authority.issue({"trireme://ps/2", {}}));
  EXPECT_THAT(describe(inspect_certificate({other.key, pair.certificate}).status()),
              HasSubstr("do not belong together"));
  EXPECT_FALSE(inspect_certificate({pair.key, "nothing"}).ok());
  EXPECT_FALSE(inspect_certificate({"nothing", pair.certificate}).ok());
  EXPECT_FALSE(CertificateAuthority::from_pem(pair).ok()) << "a task is not an authority";
}

TEST(Certificates, AFolderHasCertificatesOfEveryTaskAndOfClients) {
  const TemporaryFolder folder;
  const ClusterSpec spec{{"worker", {"a:1", "b:1"}}, {"ps", {"[::1]:2"}}};
  EXPECT_THAT(value_or_throw(write_certificates(folder.path(), spec)),
              ElementsAre("ps-0", "worker-0", "worker-1", "client"));
  struct stat key = {};
  ASSERT_EQ(stat((folder.path() + "/worker-1/key.pem").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((folder.path() + "/authority.key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);

  const auto worker = value_or_throw(Credentials::from_folder(folder.path(), TaskId{"worker", 1}));
  EXPECT_EQ(worker.identity()->name, "/job:worker/task:1");
  EXPECT_TRUE(worker.check_bind("0.0.0.0:0").ok());
  const auto client = value_or_throw(Credentials::from_folder(folder.path(), std::nullopt));
  EXPECT_EQ(client.identity()->role, Role::kClient);
  // A task's folder can be used alone, as it is copied to the task's host.
  const std::string own = folder.path() + "/worker-0";
  EXPECT_TRUE(Credentials::from_folder(own, TaskId{"worker", 0}).ok());
  EXPECT_THAT(describe(Credentials::from_folder(own, TaskId{"worker", 1}).status()),
              HasSubstr("is that of /job:worker/task:0; this process is /job:worker/task:1"));
  EXPECT_THAT(describe(Credentials::from_folder(folder.path(), TaskId{"ps", 5}).status()),
              HasSubstr("ps-5/ca.pem: No such file"));
}

TEST(Certificates, WritingAgainRenewsThemUnderTheSameAuthority) {
  const TemporaryFolder folder;
  const ClusterSpec spec{{"worker", {"a:1"}}};
  throw_if_error(write_certificates(folder.path(), spec).status());
  const std::string authority = folder.read("ca.pem");
  const std::string before = folder.read("worker-0/certificate.pem");
  throw_if_error(write_certificates(folder.path(), spec).status());
  EXPECT_EQ(folder.read("ca.pem"), authority);
  EXPECT_NE(folder.read("worker-0/certificate.pem"), before);
  std::filesystem::remove(folder.path() + "/authority.key");
  EXPECT_THAT(describe(write_certificates(folder.path(), spec).status()),
              HasSubstr("authority.key: No such file"));
}

TEST(Credentials, ErrorsSayWhatIsWrongWithACertificate) {
  const TemporaryFolder folder;
  const auto authority = value_or_throw(CertificateAuthority::make());
  const auto write = [&](const KeyAndCertificate& pair) {
    folder.write("ca.pem", authority.own().certificate);
    folder.write("certificate.pem", pair.certificate);
    folder.write("key.pem", pair.key);
    return Credentials::from_folder(folder.path(), std::nullopt).status();
  };
  EXPECT_TRUE(write(value_or_throw(authority.issue({kClientUri, {}}))).ok());
  EXPECT_THAT(describe(write(value_or_throw(authority.issue({"https://example.org", {}})))),
              HasSubstr("certificate.pem: it names no role"));
  EXPECT_THAT(describe(write(value_or_throw(
                  authority.issue({kClientUri, {}}, {.from = -hours(48), .until = -hours(24)})))),
              HasSubstr("it expired 1d"));
  folder.write("ca.pem", "nothing");
  EXPECT_THAT(describe(Credentials::from_folder(folder.path(), std::nullopt).status()),
              testing::Not(HasSubstr("OK")));
}

}  // namespace
}  // namespace trireme
