#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

// gRPC without Trireme, written as well as gRPC allows, to measure Trireme against: raw byte
// buffers without protobuf, registered asynchronous methods on completion queues, one long-lived
// stream of 1 MiB slices for large data.
namespace trireme::bench {

// PEM texts of a peer and of whom it trusts; empty: no TLS. With them both sides use TLS and ask
// for the other's certificate, by gRPC's own SslCredentials.
struct BareTls {
  std::string authority, certificate, key;
};

class BareServer {
 public:
  // Answers unary calls with the bytes it was sent, and each message on the stream with `bytes`
  // bytes of `data` in slices that refer to it.
  BareServer(int threads, const uint8_t* data, size_t bytes, const BareTls& tls = {});
  ~BareServer();
  const std::string& address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

class BareClient {
 public:
  explicit BareClient(const std::string& address, const BareTls& tls = {});
  ~BareClient();

  // One blocking call, as a generated stub makes it.
  void call(const std::string& request);
  // `count` calls, `in_flight` of them at a time, on one thread with one queue.
  void calls(const std::string& request, int count, int in_flight);
  // Asks on the long-lived stream and copies what comes into the buffer, which holds `bytes`.
  void fetch(uint8_t* buffer, size_t bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::bench
