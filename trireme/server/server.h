#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/cluster/device_spec.h"
#include "trireme/cluster/resolver.h"

namespace trireme {

// Options of a Server.
struct ServerOptions {
  // Devices of this task, on which others may place operators; by default the CPU and all
  // accelerators of the machine.
  std::optional<DeviceList> devices = {};
  // Number of threads that one operator may use; 0 for LibTorch's default. Applies to the whole
  // process.
  int threads = 0;
  // Limit on the bytes of variables and of their optimizers' state. A variable that would exceed it
  // is rejected. 0 for four fifths of the machine's memory.
  uint64_t memory_limit = 0;
  // Folder inside which programs may let this task read and write checkpoints; empty for the
  // working directory of the process.
  std::string checkpoint_root = {};
  // Folder inside which programs may let this task read the files of datasets; empty to let it read
  // none. Names that are relative are relative to this folder.
  std::string data_root = {};
  // Folder with this task's certificates, as `trireme certs init` writes them (docs/security.md);
  // empty for that of the Cluster. Without certificates, only this machine can reach the server.
  std::string certs = {};
  // True to listen on addresses that other machines can reach, without certificates. Anyone who can
  // reach the port then controls the server.
  bool insecure = false;
  // Host or address to listen on; empty for the one in the cluster spec.
  std::string bind_host = {};
  // True if join() returns when the chief ends the job. Otherwise the server stays and serves one
  // job after another.
  bool exit_with_job = true;
};

// Serves one task of a cluster from this process. Other tasks and client programs place variables
// and operators on it.
//
//   tr::TfConfigResolver resolver;
//   if (resolver.is_server()) return tr::Server(resolver).join();
//
// Serves from its construction until stop() or its destruction. Thread-safe.
class Server {
 public:
  // Serves the task of this process. If the task is the only one of its cluster and has port 0, the
  // server picks a port, which target() tells. Throws Error if the cluster has no task for this
  // process, if the task's address may not be bound, or if it is in use; the message then names the
  // process that uses it.
  explicit Server(const Cluster& cluster, const ServerOptions& options = {});
  // Serves the task `index` of `job`: tr::Server(spec, "ps", 0).
  Server(const ClusterSpec& spec, const std::string& job, int index,
         const ServerOptions& options = {});
  // Stops the server as stop() does.
  ~Server();

  // Moves it.
  Server(Server&&) noexcept;

  // Returns the task that it serves.
  const TaskId& task() const;
  // Returns the address as tr::Session takes it: "grpc://127.0.0.1:2222".
  std::string target() const;
  // Returns the number of this start of the task. It is random, and differs at each start.
  uint64_t incarnation() const;

  // Blocks until the job ends, the server is stopped, or the process gets SIGTERM or SIGINT, which
  // it handles in the meantime. Then stops the server and returns 0, the exit code for main(). A
  // server that exits with the job logs a warning if no chief's program uses it.
  int join();

  // Lets calls in flight complete for up to ten seconds, then cancels them. Returns when no call
  // runs.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
