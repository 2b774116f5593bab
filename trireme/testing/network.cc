#include "trireme/testing/network.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"

// enter() moves the whole process into a new network namespace, so nothing that follows touches the
// machine's network. Each host is another namespace, which is kept alive by an open file and joined
// to the test's bridge by a pair of virtual Ethernet devices. Hosts have the addresses
// 10.77.NETWORK.N, and the test is N = 1. Partitions are nftables rules on the receiving host,
// which drop packets silently.

namespace trireme {
namespace {

constexpr auto kCommandLimit = std::chrono::seconds(20);
constexpr char kOwnNamespace[] = "/proc/thread-self/ns/net";

absl::Status run(std::vector<std::string> command) {
  const std::string text = absl::StrJoin(command, " ");
  const auto done = run_process({.argv = std::move(command)}, after(kCommandLimit));
  TRIREME_RETURN_IF_ERROR(done.status());
  if (done->status.ok()) return absl::OkStatus();
  return make_status(ErrorCode::kInternal,
                     absl::StrCat("Network: `", text, "` ended with ", done->status.to_string(),
                                  ": ", done->stderr_text));
}

absl::Status failed(const std::string& what) {
  return make_status(ErrorCode::kFailedPrecondition,
                     absl::StrCat("Network: ", what, ": ", std::strerror(errno)));
}

absl::Status new_namespace() {
  if (unshare(CLONE_NEWNET) != 0) {
    return failed("cannot create a network namespace (this needs root or CAP_SYS_ADMIN)");
  }
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const int result = ioctl(socket, SIOCSIFFLAGS, &request);
  const absl::Status status =
      result == 0 ? absl::OkStatus() : failed("cannot bring up the loopback device");
  close(socket);
  return status;
}

// Filter chain in which a host drops the packets that must not reach it.
const std::vector<std::string> kMakeFilter = {
    "nft",
    "add table inet faults; "
    "add chain inet faults arriving { type filter hook input priority 0; }"};
const std::vector<std::string> kEmptyFilter = {"nft", "flush chain inet faults arriving"};

absl::Status enter_once() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  if (std::distance(begin(tasks), end(tasks)) != 1) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "Network: this process already has threads; call enter() before they start");
  }
  for (const char* program : {"ip", "nft", "nsenter", "ss"}) {
    TRIREME_RETURN_IF_ERROR(find_program(program).status());
  }
  TRIREME_RETURN_IF_ERROR(new_namespace());
  return run(kMakeFilter);
}

}  // namespace

absl::Status Network::enter() {
  static const absl::Status* entered = new absl::Status(enter_once());
  return *entered;
}

Network::Network() {
  throw_if_error(enter());
  // Numbers repeat after 254 networks, which is as many as addresses have room for.
  static int made = 0;
  number_ = made++ % 254 + 1;
  bridge_ = absl::StrCat("hosts", number_);
  test_host_ = absl::StrCat("10.77.", number_, ".1");
  home_ = open(kOwnNamespace, O_RDONLY | O_CLOEXEC);
  if (home_ < 0) throw_if_error(failed("cannot open the namespace of this process"));
  throw_if_error(run({"ip", "link", "add", bridge_, "type", "bridge"}));
  throw_if_error(run({"ip", "address", "add", test_host_ + "/24", "dev", bridge_}));
  throw_if_error(run({"ip", "link", "set", bridge_, "up"}));
}

Network::~Network() {
  for (const auto& [host, space] : spaces_) close(space);
  if (home_ >= 0) close(home_);
  run({"ip", "link", "delete", bridge_}).IgnoreError();
  run(kEmptyFilter).IgnoreError();
}

std::string Network::add_host() {
  const int index = static_cast<int>(spaces_.size()) + 2;
  const std::string host = absl::StrCat("10.77.", number_, ".", index);
  const std::string link = absl::StrCat("host", number_, ".", index);
  int space = -1;
  {
    const absl::Cleanup back = [this] { setns(home_, CLONE_NEWNET); };
    throw_if_error(new_namespace());
    space = open(kOwnNamespace, O_RDONLY | O_CLOEXEC);
    if (space < 0) throw_if_error(failed("cannot open the namespace of a new host"));
  }
  spaces_[host] = space;
  throw_if_error(run({"ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns",
                      absl::StrCat("/proc/", getpid(), "/fd/", space)}));
  throw_if_error(run({"ip", "link", "set", link, "master", bridge_, "up"}));
  run_on(host, {"ip", "address", "add", host + "/24", "dev", "eth0"});
  run_on(host, {"ip", "link", "set", "eth0", "up"});
  run_on(host, kMakeFilter);
  return host;
}

std::vector<std::string> Network::on_host(const std::string& host,
                                          std::vector<std::string> command) const {
  const std::string space = absl::StrCat("--net=/proc/", getpid(), "/fd/", space_of(host));
  command.insert(command.begin(), {"nsenter", space, "--"});
  return command;
}

void Network::in_host(const std::string& host, const std::function<void()>& work) {
  if (setns(space_of(host), CLONE_NEWNET) != 0)
    throw_if_error(failed("cannot enter the namespace of host " + host));
  const absl::Cleanup back = [this] { setns(home_, CLONE_NEWNET); };
  work();
}

void Network::block(const std::string& from, const std::string& to) {
  space_of(from);  // Throws if there is no such host.
  run_on(to, {"nft", absl::StrCat("add rule inet faults arriving ip saddr ", from, " drop")});
}

void Network::partition(const std::string& one, const std::string& other) {
  block(one, other);
  block(other, one);
}

void Network::unroute(const std::string& from, const std::string& to) {
  space_of(from);  // Throws if there is no such host.
  run_on(to, {"nft", absl::StrCat("add rule inet faults arriving ip saddr ", from,
                                  " tcp flags & (syn | ack) == syn reject with icmp type "
                                  "host-unreachable")});
  // Resets the connections that are established. New ones are rejected by now.
  run_on(to, {"ss", "--kill", "dst", from});
}

void Network::heal() {
  run_on(test_host_, kEmptyFilter);
  for (const auto& [host, space] : spaces_) run_on(host, kEmptyFilter);
}

void Network::run_on(const std::string& host, std::vector<std::string> command) const {
  throw_if_error(run(on_host(host, std::move(command))));
}

int Network::space_of(const std::string& host) const {
  if (host == test_host_) return home_;
  const auto found = spaces_.find(host);
  if (found == spaces_.end()) {
    throw Error(ErrorCode::kInvalidArgument, absl::StrCat("Network: there is no host ", host));
  }
  return found->second;
}

}  // namespace trireme
