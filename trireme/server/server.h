#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/cluster/device_spec.h"
#include "trireme/cluster/resolver.h"

namespace trireme {

struct ServerOptions {
  DeviceList devices = {};
  // Threads that one operator may use; 0: LibTorch's choice. It holds for the whole process.
  int threads = 0;
  // Bytes that variables and their optimizers' state may take; what exceeds it is refused. 0: four
  // fifths of the machine's memory.
  uint64_t memory_limit = 0;
  // A folder with this task's certificates, as `trireme certs init` writes them (docs/security.md).
  // Empty: none, and then only this machine can reach the server.
  std::string certs = {};
  // Listen where other machines can reach it though it has no certificates: whoever reaches the
  // port commands the server.
  bool insecure = false;
  // The host or address to listen on, if it is not the one that the cluster spec names.
  std::string bind_host = {};
  // join() returns when the chief ends the job. A server that stays serves one job after another.
  bool exit_with_job = true;
};

// A task of a cluster in this process: others place variables and operators on it.
//
//   tr::TfConfigResolver resolver;
//   if (resolver.is_server()) return tr::Server(resolver).join();
//
// It serves from its construction to stop() or its destruction. Thread-safe.
class Server {
 public:
  // Throws Error when the cluster has no task for this process, or the task's address may not be
  // bound or is taken; the message names who holds it.
  explicit Server(const Cluster& cluster, const ServerOptions& options = {});
  Server(const ClusterSpec& spec, const std::string& job, int index,
         const ServerOptions& options = {});
  ~Server();

  Server(Server&&) noexcept;

  const TaskId& task() const;
  // Where a session reaches it: "grpc://127.0.0.1:2222".
  std::string target() const;
  uint64_t incarnation() const;

  // Blocks until the job ends or the server is stopped, also by SIGTERM or SIGINT, which it handles
  // meanwhile. Drains, stops, and returns 0: what main() should return.
  int join();

  // Lets calls under way end for up to ten seconds, cancels the rest, and returns when nothing
  // runs.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
