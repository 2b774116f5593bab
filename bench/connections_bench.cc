// Many TLS connections at once to one server, which is another process: this one, run again.
//
//   connections_bench [COUNT]
//
// Prints one JSON object: time to connect, the server's memory per connection and threads, and the
// connections as `ss` counts them.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/server.h"
#include "trireme/rpc/temporary_folder.h"

namespace trireme::bench {
namespace {

constexpr char kTask[] = "/job:ps/task:0";

// A connection takes a file descriptor on each side.
void raise_file_limit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int serve(const std::string& certs) {
  raise_file_limit();
  auto server = value_or_throw(RpcServer::start(
      {.address = "127.0.0.1:0",
       .task = kTask,
       .incarnation = 1,
       .credentials = value_or_throw(Credentials::from_folder(certs, TaskId{"ps", 0}))},
      {}));
  std::printf("%s\n", server->address().c_str());
  std::fflush(stdout);
  pause();  // until it is killed
  return 0;
}

int64_t status_field(pid_t pid, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

int64_t established(const std::string& port) {
  const auto listed = value_or_throw(
      run_process({.argv = {"ss", "-tnH", "state", "established", "sport", "=", ":" + port}},
                  after(std::chrono::seconds(60))));
  return std::count(listed.stdout_text.begin(), listed.stdout_text.end(), '\n');
}

int measure(int count) {
  raise_file_limit();
  const TemporaryFolder folder;
  throw_if_error(write_certificates(folder.path(), ClusterSpec{{"ps", {"127.0.0.1:1"}}}).status());
  std::promise<std::string> told;
  auto server = value_or_throw(Subprocess::start(
      {.argv = {std::filesystem::read_symlink("/proc/self/exe").string(), "--serve", folder.path()},
       .on_stdout = [&](const std::string& line) { told.set_value(line); },
       .null_stdin = true}));
  const std::string address = told.get_future().get();
  const Credentials client = value_or_throw(Credentials::from_folder(folder.path(), std::nullopt));

  std::vector<std::unique_ptr<Channel>> channels;
  const auto connect = [&](int wanted) {
    const int before = static_cast<int>(channels.size());
    std::latch left(wanted - before);
    std::atomic<int> answered = 0;
    for (int i = before; i < wanted; ++i) {
      channels.push_back(std::make_unique<Channel>(
          ChannelOptions{.address = address, .task = kTask, .credentials = client}));
    }
    for (int i = before; i < wanted; ++i) {
      channels[i]->call(kHelloMethod, {}, {.deadline = after(std::chrono::seconds(120))},
                        [&](Response response) {
                          if (response.ok()) ++answered;
                          left.count_down();
                        });
    }
    left.wait();
    return answered.load();
  };
  connect(1);  // what the first one costs the process is not what each costs
  const int64_t memory = status_field(server->pid(), "VmRSS");
  const auto start = std::chrono::steady_clock::now();
  const int answered = 1 + connect(count + 1);
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "{\"connections\": %d, \"answered\": %d, \"established\": %lld, \"seconds\": %.3f, "
      "\"server_kib_per_connection\": %.1f, \"server_threads\": %lld}\n",
      count, answered - 1,
      static_cast<long long>(established(address.substr(address.rfind(':') + 1))), took,
      static_cast<double>(status_field(server->pid(), "VmRSS") - memory) / count,
      static_cast<long long>(status_field(server->pid(), "Threads")));
  return answered == count + 1 ? 0 : 1;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--serve") return trireme::bench::serve(argv[2]);
  return trireme::bench::measure(argc > 1 ? std::stoi(argv[1]) : 1000);
}
