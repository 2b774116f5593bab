#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace trireme {

// Simulates several hosts on this machine, each with its own address, ports and loopback. The hosts
// are network namespaces, joined by a bridge that carries the test's own address. Methods throw
// Error if something fails. Not thread-safe.
//
//   if (!Network::enter().ok()) GTEST_SKIP();
//   Network network;
//   const std::string a = network.add_host(), b = network.add_host();
//   network.partition(a, b);
class Network {
 public:
  // Moves this process into a network of its own, which no other process sees and which vanishes
  // when the process ends. Must be called before anything starts a thread, because a thread's
  // sockets belong to the network in which it was started. Returns an error that says why if this
  // is not permitted; the test should then be skipped.
  static absl::Status enter();

  // Throws Error if enter() fails.
  Network();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Adds a host and returns its address, by which the other methods know it.
  std::string add_host();
  // Returns the address of the test itself.
  const std::string& test_host() const { return test_host_; }

  // Returns the command line that runs `command` on the host.
  std::vector<std::string> on_host(const std::string& host, std::vector<std::string> command) const;
  // Runs `work` in this process, but on the host. The sockets that it opens and the threads that it
  // starts belong to that host for good, so it must not start gRPC's threads.
  void in_host(const std::string& host, const std::function<void()>& work);

  // Drops all packets from one host to another from now on, without notice to either: a partition
  // in one direction. Connections stay open, as they do when a cable is cut.
  void block(const std::string& from, const std::string& to);
  // Blocks both directions.
  void partition(const std::string& one, const std::string& other);
  // Breaks the connections between two hosts, and makes new ones from the first to the second fail
  // at once with "no route to host", as a router does that has lost the route.
  void unroute(const std::string& from, const std::string& to);
  // Ends all partitions, and restores lost routes.
  void heal();

 private:
  void run_on(const std::string& host, std::vector<std::string> command) const;
  int space_of(const std::string& host) const;

  int number_ = 0;  // Number of this network within the process; part of its addresses.
  std::string bridge_;
  std::string test_host_;
  int home_ = -1;                      // Namespace of the test itself.
  std::map<std::string, int> spaces_;  // Open file of each host's namespace, which keeps it alive.
};

}  // namespace trireme
