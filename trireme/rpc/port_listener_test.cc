// One port takes lanes and all other connections, and nobody can keep it busy.
#include "trireme/rpc/port_listener.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PortListenerTest : public testing::Test {
 protected:
  void listen(const std::string& address = "127.0.0.1:0") {
    listener_ = value_or_throw(PortListener::bind({.address = address,
                                                   .on_connection =
                                                       [this](Socket socket) {
                                                         MutexLock lock(mutex_);
                                                         others_.push_back(std::move(socket));
                                                         changed_.notify_all();
                                                       },
                                                   .lanes = table_,
                                                   .lane_time = milliseconds(300),
                                                   .silence_limit = seconds(20)}));
    listener_->start();
  }

  // Connects to the port and sends bytes.
  Socket connect(const std::string& bytes, const std::string& host = "127.0.0.1") {
    SocketAddresses addresses(nullptr, &freeaddrinfo);
    EXPECT_EQ(look_up(host, listener_->port(), addresses), 0);
    Socket socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(connect_by(socket, *addresses, after(seconds(10))), 0);
    EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    return socket;
  }

  // Returns the next connection that was not taken for a lane; none after ten seconds.
  Socket next_other() {
    const Time limit = after(seconds(10));
    MutexLock lock(mutex_);
    while (others_.empty()) {
      if (!changed_.wait_until(mutex_, limit)) return Socket();
    }
    Socket socket = std::move(others_.front());
    others_.pop_front();
    return socket;
  }

  // Returns what arrives by the time of ten seconds; "" if the connection is closed.
  static std::string read(const Socket& socket) {
    char bytes[64];
    if (!wait_for(socket, POLLIN, after(seconds(10)))) return "nothing";
    const ssize_t got = recv(socket.get(), bytes, sizeof(bytes), 0);
    return got > 0 ? std::string(bytes, static_cast<size_t>(got)) : "";
  }

  const std::shared_ptr<LaneTable> table_ = std::make_shared<LaneTable>();
  Mutex mutex_;
  CondVar changed_;
  std::deque<Socket> others_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PortListener> listener_;  // destroyed first, since its thread uses the others
};

// The first bytes belong to the server that takes the connection over.
TEST_F(PortListenerTest, LeavesOtherConnectionsUnread) {
  listen();
  for (const char* first : {"PRI * HTTP/2.0", "\x16\x03\x01", "x"}) {
    const Socket client = connect(first);
    const Socket server = next_other();
    ASSERT_GE(server.get(), 0);
    EXPECT_EQ(read(server), first);
  }
}

TEST_F(PortListenerTest, PassesOnAConnectionThatStaysSilent) {
  listen();
  const Socket client = connect("");
  const Socket server = next_other();
  ASSERT_GE(server.get(), 0);
  EXPECT_EQ(send(server.get(), "hello", 5, 0), 5);
  EXPECT_EQ(read(client), "hello");
}

TEST_F(PortListenerTest, ClosesWhatOnlyBeginsAsALane) {
  listen();
  const std::string preface = kLanePreface;
  EXPECT_EQ(read(connect(preface.substr(0, 3) + "xyz")), "");
  EXPECT_EQ(read(connect(preface)), "");  // no token within the time limit
  EXPECT_EQ(read(connect(preface.substr(0, 1))), "");
}

TEST_F(PortListenerTest, TakesATokenThatComesInTwoParts) {
  listen();
  const std::string token = table_->expect();
  const std::string all = kLanePreface + token;
  const Socket client = connect(all.substr(0, 12));
  // Another connection that comes later is passed on, so the first part has been read.
  const Socket other = connect("PRI");
  EXPECT_GE(next_other().get(), 0);
  EXPECT_EQ(send(client.get(), all.data() + 12, all.size() - 12, 0),
            static_cast<ssize_t>(all.size() - 12));
  EXPECT_TRUE(table_->take(token, after(seconds(10))).ok());
}

TEST_F(PortListenerTest, RefusesAPortOnWhichAnotherListens) {
  listen();
  const auto second =
      PortListener::bind({.address = absl::StrCat("127.0.0.1:", listener_->port())});
  EXPECT_EQ(error_code(second.status()), ErrorCode::kAlreadyExists);
}

TEST_F(PortListenerTest, RefusesWhatIsNoAddress) {
  for (const char* address : {"localhost", "127.0.0.1:70000", "127.0.0.1:", "127.0.0.1:x", ""}) {
    EXPECT_EQ(error_code(PortListener::bind({.address = address}).status()),
              ErrorCode::kInvalidArgument)
        << address;
  }
}

TEST_F(PortListenerTest, ClosesLanesIfThereIsNoTable) {
  const std::shared_ptr<LaneTable> none;
  auto listener = value_or_throw(PortListener::bind(
      {.address = "127.0.0.1:0", .on_connection = [](Socket) {}, .lanes = none}));
  listener_ = std::move(listener);
  listener_->start();
  EXPECT_EQ(read(connect(std::string(kLanePreface, 1))), "");
}

TEST_F(PortListenerTest, FreesThePortWhenItIsDestroyed) {
  listen();
  const Socket open = connect("PRI");
  const Socket server = next_other();
  const int port = listener_->port();
  listener_.reset();
  listen(absl::StrCat("127.0.0.1:", port));  // although a connection of the former one is open
  EXPECT_EQ(listener_->port(), port);
}

TEST_F(PortListenerTest, WildcardListensOnAllAddresses) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    listener_.reset();
    listen(address);
    const Socket client = connect("four");
    EXPECT_EQ(read(next_other()), "four") << address;
  }
}

TEST_F(PortListenerTest, ListensOnAName) {
  listen("localhost:0");
  const Socket client = connect("name");
  EXPECT_EQ(read(next_other()), "name");
  EXPECT_EQ(error_code(PortListener::bind({.address = "no-such-host.invalid:0"}).status()),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trireme::internal
