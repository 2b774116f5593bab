#include "trireme/rpc/connection_probe.h"

#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/cluster/address.h"
#include "trireme/rpc/socket.h"

// A probe makes up to two connections. On the first it only listens: a gRPC server without TLS
// sends its HTTP/2 settings soon after it has accepted, and many other programs send a greeting. If
// nothing comes, a second connection sends a TLS client hello, to which a TLS server answers with a
// handshake or an alert. Nothing is ever sent that a server could take for a request.
namespace trireme::internal {
namespace {

using std::chrono::milliseconds;

// Time in which a server without TLS sends its first bytes.
constexpr auto kFirstWord = milliseconds(300);

Found found_from_errno(int error) {
  switch (error) {
    case ECONNREFUSED:
      return Found::kRefused;
    case ETIMEDOUT:
      return Found::kSilent;
    default:
      return Found::kUnreachable;
  }
}

// Connects a socket. Returns nullopt on success, otherwise the result of the probe.
std::optional<Probe> connect_to(const Socket& socket, const addrinfo& address, Time limit) {
  const int error = connect_by(socket, address, limit);
  if (error == 0) return std::nullopt;
  return Probe{found_from_errno(error), error == ETIMEDOUT ? "" : std::strerror(error)};
}

// Returns the first bytes, at most 16, that arrive by the limit.
std::string first_bytes(const Socket& socket, Time limit) {
  std::string bytes(16, '\0');
  size_t got = 0;
  while (got < bytes.size() && wait_for(socket, POLLIN, limit)) {
    const ssize_t part = recv(socket.get(), bytes.data() + got, bytes.size() - got, 0);
    if (part <= 0) break;
    got += static_cast<size_t>(part);
  }
  bytes.resize(got);
  return bytes;
}

// Returns true for the beginning of an HTTP/2 connection, which is a SETTINGS frame (type 4).
bool is_http2(const std::string& bytes) {
  return bytes.size() >= 9 && bytes[0] == 0 && bytes[3] == 4;
}

// Returns true for a TLS record of type handshake (0x16) or alert (0x15) and version 3.x.
bool is_tls(const std::string& bytes) {
  return bytes.size() >= 3 && (bytes[0] == 0x16 || bytes[0] == 0x15) && bytes[1] == 3;
}

// Returns the first message of a TLS client, made by OpenSSL in memory.
std::string client_hello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  if (context == nullptr) return "";
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  if (ssl == nullptr) return "";
  BIO* written = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), written);  // takes ownership of both
  SSL_set_connect_state(ssl.get());
  SSL_do_handshake(ssl.get());  // writes the first message and stops, since no answer comes
  char* data = nullptr;
  const long size = BIO_get_mem_data(written, &data);
  return std::string(data, static_cast<size_t>(size));
}

Probe probe_address(const addrinfo& address, Time limit) {
  const auto make_socket = [&] {
    return socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  };
  {
    const Socket socket(make_socket());
    if (auto failed = connect_to(socket, address, limit)) return *failed;
    const std::string word = first_bytes(socket, std::min(limit, after(kFirstWord)));
    if (is_http2(word)) return {Found::kPlain, ""};
    if (!word.empty()) return {Found::kOther, ""};
  }
  const Socket socket(make_socket());
  if (auto failed = connect_to(socket, address, limit)) return *failed;
  const std::string hello = client_hello();
  send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
  const std::string answer = first_bytes(socket, limit);
  if (is_tls(answer)) return {Found::kTls, ""};
  if (is_http2(answer)) return {Found::kPlain, ""};
  return {answer.empty() ? Found::kSilent : Found::kOther, ""};
}

Probe probe_now(const Address& address, Time limit) {
  SocketAddresses addresses(nullptr, &freeaddrinfo);
  if (const int error = look_up(address.host, address.port, addresses); error != 0) {
    return {Found::kNoSuchHost, gai_strerror(error)};
  }
  // A name may have several addresses. The most specific result counts.
  Probe best = {Found::kNoSuchHost, ""};
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const Probe probe = probe_address(*each, limit);
    if (probe.found > best.found) best = probe;
  }
  return best;
}

bool is_refused_now(const Address& address, Time limit) {
  SocketAddresses addresses(nullptr, &freeaddrinfo);
  if (look_up(address.host, address.port, addresses) != 0) return false;
  bool refused = false;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const Socket socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const std::optional<Probe> failed = connect_to(socket, *each, limit);
    // An address without a route does not count: "localhost" has one of IPv6 even on machines
    // without it.
    if (failed && failed->found == Found::kUnreachable) continue;
    if (!failed || failed->found != Found::kRefused) return false;
    refused = true;
  }
  return refused;
}

}  // namespace

Probe probe_connection(const std::string& address, Time limit) {
  const auto parsed = try_call([&] { return Address::parse(address); });
  if (!parsed.ok()) return {Found::kNoSuchHost, std::string(parsed.status().message())};
  // getaddrinfo() has no time limit, so it runs on a thread that may be left behind.
  auto result = std::make_shared<std::promise<Probe>>();
  std::future<Probe> done = result->get_future();
  std::thread([result, address = *parsed, limit] {
    result->set_value(probe_now(address, limit));
  }).detach();
  if (done.wait_until(limit + milliseconds(100)) == std::future_status::ready) return done.get();
  return {Found::kNoSuchHost, "looking up the name takes too long"};
}

void find_refusal(const std::string& address, Time limit, std::function<void(bool refused)> done) {
  std::thread([address, limit, done = std::move(done)] {
    const auto parsed = try_call([&] { return Address::parse(address); });
    done(parsed.ok() && is_refused_now(*parsed, limit));
  }).detach();
}

}  // namespace trireme::internal
