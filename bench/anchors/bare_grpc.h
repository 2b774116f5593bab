#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

// gRPC without Trireme, as fast as gRPC allows, to compare Trireme with. It uses raw byte buffers
// without protobuf, registered asynchronous methods on completion queues, and one long-lived stream
// of 1 MiB slices for large data.
namespace trireme::bench {

// PEM texts of a peer's certificate and key, and of the authority that it trusts. With them both
// sides use TLS and require the other's certificate, through gRPC's own SslCredentials. Empty for
// no TLS.
struct BareTls {
  std::string authority, certificate, key;
};

class BareServer {
 public:
  // Answers a unary call with the bytes of its request, and each message on the stream with `bytes`
  // bytes of `data`, in slices that refer to it. `data` must outlive the server.
  BareServer(int threads, const uint8_t* data, size_t bytes, const BareTls& tls = {});
  ~BareServer();
  const std::string& address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Client of one BareServer. Aborts the process if a call fails. Not thread-safe.
class BareClient {
 public:
  explicit BareClient(const std::string& address, const BareTls& tls = {});
  ~BareClient();

  // Makes one blocking call, as a generated stub does.
  void call(const std::string& request);
  // Makes `count` calls, with up to `in_flight` at a time, on one thread with one queue.
  void calls(const std::string& request, int count, int in_flight);
  // Requests the data on the long-lived stream and copies it into the buffer of `bytes` bytes.
  void fetch(uint8_t* buffer, size_t bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::bench
