// A client program that cannot reach its cluster is told the reason within three seconds, and fails
// at once if waiting cannot help. The tests run real processes for each of the usual mistakes.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/commands.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/slowdown.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kReportWithin = seconds(3);
constexpr auto kAtOnce = seconds(2);
constexpr int kLong = 30'000;  // a timeout in ms that no test here waits for

// A server of another protocol, which greets each connection with a text.
class OtherProgram {
 public:
  explicit OtherProgram(const std::string& greeting) : greeting_(greeting) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(own);
    if (bind(socket_, reinterpret_cast<sockaddr*>(&own), size) != 0 || listen(socket_, 16) != 0 ||
        getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      throw Error(ErrorCode::kInternal, "the test cannot listen");
    }
    address_ = absl::StrCat("127.0.0.1:", ntohs(own.sin_port));
    thread_ = std::thread([this] {
      while (!ended_) {
        const int peer = accept(socket_, nullptr, nullptr);
        if (peer < 0) return;
        send(peer, greeting_.data(), greeting_.size(), MSG_NOSIGNAL);
        close(peer);
      }
    });
  }
  ~OtherProgram() {
    ended_ = true;
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }
  const std::string& address() const { return address_; }

 private:
  const std::string greeting_;
  int socket_;
  std::string address_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

class ConnectingTest : public testing::Test {
 protected:
  RunningCommand& client(const std::string& what, const ClusterSpec& spec,
                         const std::string& certs = "", int timeout_ms = kLong) {
    client_ = std::make_unique<RunningCommand>(SubprocessOptions{
        .argv = {MISTAKEN_CLIENT, what, spec.to_json(), certs, std::to_string(timeout_ms)},
        .null_stdin = true});
    // The limits are those of the connecting. Loading LibTorch may take seconds before it.
    client_->wait_for("begins");
    started_ = Clock::real().now();
    return *client_;
  }

  // Waits for the client to fail and returns its error. Checks that it failed within `limit`.
  std::string error_within(Duration limit) {
    EXPECT_EQ(client_->wait().code, 1) << client_->text();
    expect_elapsed_below(limit);
    return client_->wait_for("error: (.*)");
  }

  // Waits until the client logs `pattern`. Checks that it did so within kReportWithin.
  std::string reported(const std::string& pattern) {
    const std::string line = client_->wait_for(pattern);
    expect_elapsed_below(kReportWithin);
    return line;
  }

  void expect_elapsed_below(Duration limit) const {
    const std::chrono::duration<double> elapsed = Clock::real().now() - started_;
    if (elapsed < limit) return;
    EXPECT_LT(elapsed, limit * slowdown()) << client_->text();
  }

  Time started_;
  std::unique_ptr<RunningCommand> client_;
};

TEST_F(ConnectingTest, NamesAServerThatIsNotUp) {
  PortReservation port = value_or_throw(PortReservation::make());
  client("strategy", {{"ps", {port.address()}}}, "", 4000);
  EXPECT_THAT(
      reported("waiting for (.*)"),
      AllOf(HasSubstr("/job:ps/task:0 (" + port.address() + ")"),
            HasSubstr("no process listens there (Connection refused); is the task running?")));
  EXPECT_THAT(error_within(seconds(6)), AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("waited 4"),
                                              HasSubstr("/job:ps/task:0 (" + port.address() +
                                                        "): no process listens there")));
}

TEST_F(ConnectingTest, NamesAllMissingServers) {
  ProcessCluster up({{.workers = 0, .ps = 1}});
  PortReservation one = value_or_throw(PortReservation::make());
  PortReservation two = value_or_throw(PortReservation::make());
  client("strategy", {{"ps", {up.spec().address({"ps", 0}), one.address(), two.address()}}});
  const std::string line = reported("waiting for (.*)");
  EXPECT_THAT(line, AllOf(HasSubstr("/job:ps/task:1"), HasSubstr("/job:ps/task:2")));
  EXPECT_THAT(line, testing::Not(HasSubstr("/job:ps/task:0")));
}

TEST_F(ConnectingTest, NamesAnUnknownHost) {
  client("strategy", {{"ps", {"no-such-host.invalid:2222"}}}, "", 4000);
  EXPECT_THAT(reported("waiting for (.*)"), HasSubstr("its host name cannot be resolved"));
  EXPECT_THAT(error_within(seconds(6)), HasSubstr("its host name cannot be resolved"));
}

TEST_F(ConnectingTest, RecognizesAnotherProgramAtTheAddress) {
  OtherProgram other("SSH-2.0-OpenSSH_9.2\r\n");
  client("session", {{"worker", {other.address()}}});
  EXPECT_THAT(error_within(kAtOnce),
              AllOf(HasSubstr(other.address()), HasSubstr("not a Trireme server")));
}

TEST_F(ConnectingTest, RejectsAClientWithoutCertificates) {
  TemporaryFolder certs;
  ProcessCluster cluster({{.workers = 1, .ps = 1}, {}, certs.path()});
  client("strategy", cluster.spec());
  EXPECT_THAT(error_within(kAtOnce),
              AllOf(HasSubstr("/job:ps/task:0"), HasSubstr("this client has none")));
  client("session", cluster.spec());
  EXPECT_THAT(error_within(kAtOnce), HasSubstr("this client has none"));
}

TEST_F(ConnectingTest, RejectsAServerWithoutCertificates) {
  TemporaryFolder certs;
  ProcessCluster cluster({{.workers = 1, .ps = 1}});
  throw_if_error(write_certificates(certs.path(), cluster.spec()).status());
  client("strategy", cluster.spec(), certs.path());
  EXPECT_THAT(error_within(kAtOnce),
              AllOf(HasSubstr("/job:ps/task:0"), HasSubstr("the server has no certificates")));
}

TEST_F(ConnectingTest, RejectsCertificatesOfAnotherAuthority) {
  TemporaryFolder certs, others;
  ProcessCluster cluster({{.workers = 1, .ps = 1}, {}, certs.path()});
  throw_if_error(write_certificates(others.path(), cluster.spec()).status());
  client("strategy", cluster.spec(), others.path());
  EXPECT_THAT(error_within(kReportWithin),
              AllOf(HasSubstr("/job:ps/task:0"), HasSubstr("authority (ca.pem)")));
}

TEST_F(ConnectingTest, RejectsACertificateOfTheWrongRole) {
  TemporaryFolder certs;
  ProcessCluster cluster({{.workers = 1, .ps = 1}, {}, certs.path()});
  // The client uses the certificate of a parameter server.
  client("coordinator", cluster.spec(), certs.path() + "/ps-0");
  EXPECT_THAT(
      error_within(kReportWithin),
      AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("/job:ps/task:0"), HasSubstr("may call it")));
}

TEST_F(ConnectingTest, ReportsThatNoWorkerIsUp) {
  ProcessCluster cluster({{.workers = 0, .ps = 1}});
  PortReservation port = value_or_throw(PortReservation::make());
  client("coordinator", {{"ps", {cluster.spec().address({"ps", 0})}}, {"worker", {port.address()}}},
         "", 8000);
  EXPECT_THAT(reported("(no worker is up, 3 closures wait.*)"),
              AllOf(HasSubstr("/job:worker/task:0 (" + port.address() + ")"),
                    HasSubstr("no process listens there")));
  client_->wait_for("no worker is up[^\n]*\n(.|\n)*no worker is up");  // and again
  EXPECT_THAT(error_within(seconds(11)),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("3 closures are not done yet")));
}

TEST_F(ConnectingTest, ASessionNamesAMissingTaskOfItsGraph) {
  PortReservation port = value_or_throw(PortReservation::make());
  PortReservation own = value_or_throw(PortReservation::make());
  const ClusterSpec spec{{"worker", {own.address(), port.address()}}};
  RunningCommand server(trireme_command(
      {"server"}, absl::StrCat("{\"cluster\": ", spec.to_json(),
                               ", \"task\": {\"type\": \"worker\", \"index\": 0}}")));
  server.wait_for(" serves at ");
  client("session", spec, "", 6000);
  EXPECT_THAT(reported("waiting for (.*)"),
              AllOf(HasSubstr("/job:worker/task:1 (" + port.address()),
                    HasSubstr("no process listens there")));
  EXPECT_THAT(error_within(seconds(8)),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("/job:worker/task:1"),
                    HasSubstr("no process listens there")));
}

TEST_F(ConnectingTest, ReportsThatNoClusterWasGiven) {
  client("strategy", {});
  EXPECT_THAT(error_within(kAtOnce), HasSubstr("no cluster was given"));
}

TEST_F(ConnectingTest, ReportsAnAddressOfAnotherMachineBeforeMissingCertificates) {
  const auto server = run_trireme(
      {"server"}, R"({"cluster": {"ps": ["192.0.2.1:2222"]}, "task": {"type": "ps", "index": 0}})");
  EXPECT_EQ(server.status.code, 1) << server.stderr_text;
  EXPECT_THAT(server.stderr_text, HasSubstr("this machine does not have this address"));
}

}  // namespace
}  // namespace trireme
