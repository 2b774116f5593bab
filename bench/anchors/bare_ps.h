#pragma once

#include <cstddef>
#include <memory>
#include <string>

// A parameter server with nothing but gRPC and a loop, to measure Trireme's against: one resident
// array of floats, long-lived streams of 1 MiB slices. A pull copies the array out under a lock and
// sends the copy; a push is received whole and then added under the same lock, so that nobody sees
// half of one. No names, shapes, retries, identities or limits.
namespace trireme::bench {

class BarePsServer {
 public:
  BarePsServer(int threads, size_t floats);
  ~BarePsServer();
  const std::string& address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// One server's client; each call blocks. Used from one thread.
class BarePsClient {
 public:
  BarePsClient(const std::string& address, size_t floats);
  ~BarePsClient();
  void pull(float* into);
  void push(const float* delta);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::bench
