#pragma once

#include <cstddef>
#include <memory>
#include <string>

// A minimal parameter server on bare gRPC, to compare Trireme's with. It has one array of floats
// and long-lived streams of 1 MiB slices. A pull copies the array under a lock and sends the copy.
// A push is received whole and then added under the same lock, so that no pull sees half of it.
// There are no names, shapes, retries, identities or limits.
namespace trireme::bench {

// Serves an array of `floats` zeros with `threads` threads.
class BarePsServer {
 public:
  BarePsServer(int threads, size_t floats);
  ~BarePsServer();
  const std::string& address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Client of one BarePsServer. Each call blocks. Not thread-safe.
class BarePsClient {
 public:
  BarePsClient(const std::string& address, size_t floats);
  ~BarePsClient();
  // Copies the server's array to `into`.
  void pull(float* into);
  // Adds `delta` to the server's array.
  void push(const float* delta);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::bench
