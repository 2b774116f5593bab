#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace trireme {

// Hosts on this machine, each with an address, ports and a loopback of its own: network namespaces,
// joined by a bridge whose address is the test's. What fails throws Error. Used from one thread.
class Network {
 public:
  // Moves this process into a network of its own, which nobody else sees and of which nothing is
  // left when the process ends. Comes before everything that starts threads: a thread's sockets are
  // in the network that it was born in. Fails, saying why, where this is not allowed; a test
  // is then skipped.
  static absl::Status enter();

  // After enter().
  Network();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // An address, which names the host from now on.
  std::string add_host();
  // The test's own.
  const std::string& test_host() const { return test_host_; }

  // The command that runs a command on that host.
  std::vector<std::string> on_host(const std::string& host, std::vector<std::string> command) const;
  // Does work of this process there: sockets that it opens and threads that it starts belong to
  // that host for good. So nothing that starts gRPC's threads.
  void in_host(const std::string& host, const std::function<void()>& work);

  // What one host sends to another is lost from now on, without a word to either: a partition one
  // way. Both ways: both. Connections stay, as they do when a cable is cut.
  void block(const std::string& from, const std::string& to);
  void partition(const std::string& one, const std::string& other);
  // Ends all partitions.
  void heal();

 private:
  void run_on(const std::string& host, std::vector<std::string> command) const;
  int space_of(const std::string& host) const;

  int number_ = 0;  // of the networks of this process
  std::string bridge_;
  std::string test_host_;
  int home_ = -1;
  std::map<std::string, int> spaces_;  // an open file of each namespace keeps it
};

}  // namespace trireme
