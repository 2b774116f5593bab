// One process of a cluster of parameter servers and workers, either Trireme's or bare ones.
// bench/compare starts and controls it.
//
//   ps_bench server ours ADDRESS,ADDRESS INDEX
//   ps_bench server bare
//   ps_bench worker ours|shm|bare ADDRESS,ADDRESS
//
// "shm" is a worker of ours that uses shared memory, "ours" one that does not.
//
// A server prints its address and serves until its input is closed. A worker executes each line of
// its input ("pull N", "push N" or "many_small N") and answers with a line. A dense variable of 64
// MiB has a shard on each server; 10,000 small variables have 64 floats each.
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/anchors/bare_ps.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/variable_service.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/task_server.h"
#include "trireme/tensor/buffer_pool.h"

namespace trireme::bench {
namespace {

constexpr int64_t kFloats = 16 << 20;
constexpr int kSmall = 10000;
constexpr int64_t kSmallFloats = 64;

ClusterSpec spec_of(const std::string& addresses) {
  const std::vector<std::string> list = absl::StrSplit(addresses, ',');
  return ClusterSpec(std::map<std::string, TaskAddresses>{{"ps", list}});
}

void until_input_ends() {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int serve_ours(const std::string& addresses, int index) {
  const auto server =
      value_or_throw(TaskServer::start({.spec = spec_of(addresses),
                                        .task = {"ps", index},
                                        .services = {make_server_service, [](TaskContext& context) {
                                                       return make_variable_service(context);
                                                     }}}));
  std::printf("%s\n", server->context().address.c_str());
  std::fflush(stdout);
  until_input_ends();
  return 0;
}

int serve_bare() {
  const BarePsServer server(default_rpc_threads(), kFloats / 2);
  std::printf("%s\n", server.address().c_str());
  std::fflush(stdout);
  until_input_ends();
  return 0;
}

using Commands = std::map<std::string, std::function<void()>>;

// Executes the commands of the input until it ends.
int execute_commands(const Commands& commands) {
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int count = 0;
    words >> command >> count;
    for (int i = 0; i < count; ++i) commands.at(command)();
    std::printf("done\n");
    std::fflush(stdout);
  }
  return 0;
}

int work_for_ours(const std::string& addresses, bool shared_memory) {
  const auto client =
      value_or_throw(PsClient::connect({.spec = spec_of(addresses), .shared_memory = shared_memory},
                                       after(std::chrono::seconds(30))));
  const auto create = [&](const std::vector<VariableSpec>& specs, const Partitioner& partitioner) {
    std::vector<PsClient::PlacedVariable> made;
    for (const VariableLayout& layout :
         ShardPlacer(client->servers(), Placement::kRoundRobin, partitioner).place(specs)) {
      made.push_back({.layout = layout});
    }
    return value_or_throw(client->create(made));
  };
  const PsVariable dense = create({{"dense", {kFloats}}}, FixedPartitioner(client->servers()))[0];
  std::vector<VariableSpec> specs;
  for (int i = 0; i < kSmall; ++i) specs.push_back({"small_" + std::to_string(i), {kSmallFloats}});
  const std::vector<PsVariable> small = create(specs, nullptr);

  const uint64_t writer = new_incarnation();
  throw_if_error(client->begin_writer(writer));
  uint64_t sequence = 0;
  const auto push = [&](const std::vector<PsPush>& pushes) {
    throw_if_error(client->push(pushes, {.id = {writer, sequence, 0}, .watermark = sequence}));
    ++sequence;
  };
  at::Tensor delta = BufferPool::shared().empty({kFloats}, at::kFloat);
  delta.fill_(0.1);
  return execute_commands({{"pull", [&] { value_or_throw(client->pull({{dense}})); }},
                           {"push", [&] { push({{.variable = dense, .values = delta}}); }},
                           {"many_small", [&] {
                              std::vector<PsPull> pulls;
                              pulls.reserve(kSmall);
                              for (const PsVariable& variable : small) pulls.push_back({variable});
                              const auto deltas = at::_foreach_mul(
                                  value_or_throw(client->pull(std::move(pulls))), 0.001);
                              std::vector<PsPush> pushes;
                              pushes.reserve(kSmall);
                              for (int i = 0; i < kSmall; ++i) {
                                pushes.push_back({.variable = small[i], .values = deltas[i]});
                              }
                              push(pushes);
                            }}});
}

int work_for_bare(const std::string& addresses) {
  std::vector<std::unique_ptr<BarePsClient>> clients;
  for (const auto& address : absl::StrSplit(addresses, ',')) {
    clients.push_back(std::make_unique<BarePsClient>(std::string(address), kFloats / 2));
  }
  at::Tensor into = BufferPool::shared().empty({kFloats}, at::kFloat);
  at::Tensor delta = BufferPool::shared().empty({kFloats}, at::kFloat);
  into.fill_(0);
  delta.fill_(0.1);
  const auto on_each = [&](const std::function<void(BarePsClient&, float*)>& work, at::Tensor& of) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < clients.size(); ++i) {
      threads.emplace_back([&, i] { work(*clients[i], of.data_ptr<float>() + i * (kFloats / 2)); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  return execute_commands(
      {{"pull",
        [&] { on_each([](BarePsClient& client, float* data) { client.pull(data); }, into); }},
       {"push",
        [&] { on_each([](BarePsClient& client, float* data) { client.push(data); }, delta); }}});
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  using namespace trireme::bench;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.size() < 2 ? "" : arguments[0] + " " + arguments[1];
  if (what == "server ours" && arguments.size() == 4) {
    return serve_ours(arguments[2], std::stoi(arguments[3]));
  }
  if (what == "server bare") return serve_bare();
  if (what == "worker ours" && arguments.size() == 3) return work_for_ours(arguments[2], false);
  if (what == "worker shm" && arguments.size() == 3) return work_for_ours(arguments[2], true);
  if (what == "worker bare" && arguments.size() == 3) return work_for_bare(arguments[2]);
  std::fprintf(stderr,
               "ps_bench: wrong arguments; run bench/compare ps, which starts this program\n");
  return 2;
}
