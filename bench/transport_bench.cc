// Measures Trireme's transport against bare gRPC: a client process measures two server processes,
// one of each kind, in turn. Prints one JSON object per measurement; bench/compare computes ratios.
//
//   transport_bench --certs FOLDER
//   transport_bench --serve ours|bare [FOLDER]
//   transport_bench OURS BARE OURS_TLS BARE_TLS FOLDER ROUNDS SCALE [CASE…]
//
// The first form writes certificates for the others. The second prints its address and serves until
// its standard input is closed, with TLS if a folder is given. The third is the client; its first
// four arguments are addresses of servers.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <semaphore>
#include <string>
#include <vector>

#include "bench/anchors/bare_grpc.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/file_text.h"
#include "trireme/rpc/server.h"

namespace trireme::bench {
namespace {

constexpr size_t kBytes = 64 << 20;
constexpr char kEcho[] = "/bench.Bench/Echo";
constexpr char kFetch[] = "/bench.Bench/Fetch";

class BenchService final : public Service {
 public:
  explicit BenchService(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  std::vector<Method> methods() override {
    return {{kEcho, Roles::all(), Repeats::kHarmless,
             [](ServerCall call) { call.respond(std::move(call.request())); }},
            {kFetch, Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
               call.respond(Message{"", {tensor_}});
             }}};
  }

 private:
  at::Tensor tensor_;
};

// Reads the TLS settings of the anchor. Both of its sides use the task's certificate, because gRPC
// checks the host name in it.
BareTls bare_tls(const std::string& folder) {
  if (folder.empty()) return {};
  const auto read = [&](const char* name) {
    return value_or_throw(internal::read_text_file(folder + "/ps-0/" + name));
  };
  return {read(kAuthorityFile), read(kCertificateFile), read(kKeyFile)};
}

int serve(const std::string& kind, const std::string& certs) {
  at::Tensor tensor = BufferPool::shared().empty({kBytes / 4}, at::kFloat);
  std::memset(tensor.data_ptr(), 1, kBytes);
  std::unique_ptr<RpcServer> ours;
  std::unique_ptr<BareServer> bare;
  if (kind == "ours") {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<BenchService>(tensor));
    RpcServerOptions options{.address = "127.0.0.1:0", .task = "/job:ps/task:0", .incarnation = 1};
    if (!certs.empty()) {
      options.credentials = value_or_throw(Credentials::from_folder(certs, TaskId{"ps", 0}));
    }
    ours = value_or_throw(RpcServer::start(std::move(options), std::move(services)));
  } else {
    bare = std::make_unique<BareServer>(
        default_rpc_threads(), static_cast<uint8_t*>(tensor.data_ptr()), kBytes, bare_tls(certs));
  }
  std::printf("%s\n", (ours ? ours->address() : bare->address()).c_str());
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ours_in_flight(Channel& channel, const std::string& body, int count, int in_flight) {
  std::counting_semaphore<> slots(in_flight);
  std::atomic<int> failed = 0;
  for (int i = 0; i < count; ++i) {
    slots.acquire();
    channel.call(kEcho, Message{body, {}}, {}, [&](Response response) {
      if (!response.ok()) ++failed;
      slots.release();
    });
  }
  for (int i = 0; i < in_flight; ++i) slots.acquire();
  if (failed > 0) std::abort();
}

struct Case {
  const char* unit;
  double work;  // Work of one run, in units.
  std::function<void()> ours;
  std::function<void()> bare;
};

void measure_rounds(const std::string& name, const Case& test, int rounds) {
  test.ours();
  test.bare();
  for (int round = 0; round < rounds; ++round) {
    // Alternate which side goes first, so that neither always runs right after the other.
    double took_ours = 0, took_bare = 0;
    if (round % 2 == 0) took_ours = seconds(test.ours);
    took_bare = seconds(test.bare);
    if (round % 2 == 1) took_ours = seconds(test.ours);
    std::printf(
        "{\"case\": \"%s\", \"ours\": %.6g, \"anchor\": %.6g, \"unit\": \"%s\", "
        "\"threads\": %d}\n",
        name.c_str(), test.work / took_ours, test.work / took_bare, test.unit,
        default_rpc_threads());
    std::fflush(stdout);
  }
}

// Measures the chosen cases, or all of them if none is chosen.
int measure_cases(const std::map<std::string, Case>& cases, const std::vector<std::string>& chosen,
                  int rounds) {
  for (const std::string& name : chosen) {
    if (cases.contains(name)) continue;
    std::fprintf(stderr, "transport_bench: there is no case '%s'\n", name.c_str());
    return 2;
  }
  for (const auto& [name, test] : cases) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), name) == chosen.end()) continue;
    measure_rounds(name, test, rounds);
  }
  return 0;
}

struct Servers {
  std::string ours, bare, ours_tls, bare_tls, certs;
};

int measure(const Servers& servers, int rounds, double scale,
            const std::vector<std::string>& chosen) {
  Channel ours({.address = servers.ours});
  Channel ours_tls(
      {.address = servers.ours_tls,
       .task = "/job:ps/task:0",
       .credentials = value_or_throw(Credentials::from_folder(servers.certs, std::nullopt))});
  throw_if_error(ours_tls.hello(after(std::chrono::seconds(10))).status());
  BareClient bare_secure(servers.bare_tls, bare_tls(servers.certs));
  throw_if_error(ours.hello(after(std::chrono::seconds(10))).status());
  BareClient bare(servers.bare);
  const std::string kib(1024, 'x');
  const int calls = static_cast<int>(500 * scale);
  const int many = static_cast<int>(4000 * scale);
  const int fetches = std::max(1, static_cast<int>(2 * scale));

  const auto fetch = [&](Channel& channel) {
    const Response response = channel.call(kFetch, {}, {.large_response = true});
    throw_if_error(response.status());
    if (response->tensors.at(0).nbytes() != kBytes) std::abort();
  };
  // Warm cases reuse memory on both sides: a block of the pool, and one buffer. Fresh cases map new
  // memory for each fetch.
  at::Tensor warm = BufferPool::shared().empty({kBytes}, at::kByte);
  const auto bare_fetch = [&](at::Tensor& buffer) {
    bare.fetch(static_cast<uint8_t*>(buffer.data_ptr()), kBytes);
  };
  const double gigabytes = kBytes / 1e9 * fetches;
  const std::map<std::string, Case> cases = {
      {"call_1KiB",
       {"1/s", static_cast<double>(calls),
        [&] {
          for (int i = 0; i < calls; ++i) throw_if_error(ours.call(kEcho, {kib, {}}).status());
        },
        [&] {
          for (int i = 0; i < calls; ++i) bare.call(kib);
        }}},
      {"calls_64_in_flight",
       {"1/s", static_cast<double>(many), [&] { ours_in_flight(ours, kib, many, 64); },
        [&] { bare.calls(kib, many, 64); }}},
      {"fetch_64MiB",
       {"GB/s", gigabytes,
        [&] {
          for (int i = 0; i < fetches; ++i) fetch(ours);
        },
        [&] {
          for (int i = 0; i < fetches; ++i) bare_fetch(warm);
        }}},
      {"fetch_64MiB_tls",
       {"GB/s", gigabytes,
        [&] {
          for (int i = 0; i < fetches; ++i) fetch(ours_tls);
        },
        [&] {
          for (int i = 0; i < fetches; ++i) {
            bare_secure.fetch(static_cast<uint8_t*>(warm.data_ptr()), kBytes);
          }
        }}},
      {"fetch_64MiB_fresh",
       {"GB/s", gigabytes,
        [&] {
          for (int i = 0; i < fetches; ++i) {
            BufferPool::shared().release_idle();
            fetch(ours);
          }
          BufferPool::shared().release_idle();
        },
        [&] {
          for (int i = 0; i < fetches; ++i) {
            BufferPool pool(0);
            at::Tensor fresh = pool.empty({kBytes}, at::kByte);
            bare_fetch(fresh);
          }
        }}},
  };
  return measure_cases(cases, chosen, rounds);
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 2 && arguments[0] == "--serve") {
    return trireme::bench::serve(arguments[1], arguments.size() > 2 ? arguments[2] : "");
  }
  if (arguments.size() == 2 && arguments[0] == "--certs") {
    trireme::throw_if_error(
        trireme::write_certificates(arguments[1], trireme::ClusterSpec{{"ps", {"127.0.0.1:1"}}})
            .status());
    return 0;
  }
  if (arguments.size() < 7) {
    std::fprintf(stderr,
                 "transport_bench: wrong arguments; run bench/compare transport, which starts this "
                 "program\n");
    return 2;
  }
  return trireme::bench::measure(
      {arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]},
      std::stoi(arguments[5]), std::stod(arguments[6]), {arguments.begin() + 7, arguments.end()});
}
