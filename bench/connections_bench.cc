// Measures many simultaneous TLS connections to one `trireme server` in another process.
//
//   connections_bench [COUNT [AT_ONCE]]
//
// Prints one JSON object: the number of answered connections, the established connections as `ss`
// counts them, the time until all were answered, the server's processor time and memory for each
// connection, and its threads. Opens AT_ONCE connections at a time; by default all.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/file_limit.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"

namespace trireme::bench {
namespace {

using std::chrono::seconds;

int64_t status_field(pid_t pid, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

// Returns the processor time that the process has used so far.
double cpu_seconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string field;
  std::getline(file, field, ')');  // The name may contain spaces.
  double ticks = 0;
  for (int i = 3; file >> field; ++i) {
    if (i == 14 || i == 15) ticks += std::stod(field);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t established(const std::string& port) {
  const auto listed = value_or_throw(
      run_process({.argv = {"ss", "-tnH", "state", "established", "sport", "=", ":" + port}},
                  after(seconds(60))));
  return std::count(listed.stdout_text.begin(), listed.stdout_text.end(), '\n');
}

class Connections {
 public:
  explicit Connections(ChannelOptions options) : options_(std::move(options)) {}

  // Opens `count` more connections at once and returns how many were answered.
  int add(int count) {
    std::latch left(count);
    std::atomic<int> answered = 0;
    const size_t first = channels_.size();
    for (int i = 0; i < count; ++i) channels_.push_back(std::make_unique<Channel>(options_));
    for (size_t i = first; i < channels_.size(); ++i) {
      channels_[i]->call(kHelloMethod, {}, {.deadline = after(seconds(120))},
                         [&](Response response) {
                           if (response.ok()) ++answered;
                           left.count_down();
                         });
    }
    left.wait();
    return answered;
  }

 private:
  ChannelOptions options_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

int measure(int count, int at_once) {
  raise_file_limit();
  const TemporaryFolder folder;
  const PortReservation port = value_or_throw(PortReservation::make());
  const std::string address = port.address();
  const ClusterSpec spec{{"ps", {address}}};
  throw_if_error(write_certificates(folder.path(), spec).status());
  folder.write("cluster.json", spec.to_json());
  const auto binary = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "trireme";
  const auto server = value_or_throw(Subprocess::start(
      {.argv = {binary.string(), "server", "--job", "ps", "--task", "0", "--certs", folder.path(),
                "--cluster", folder.path() + "/cluster.json", "--log-level", "warning"},
       .null_stdin = true}));
  const ChannelOptions options = {
      .address = address,
      .task = "/job:ps/task:0",
      .credentials = value_or_throw(Credentials::from_folder(folder.path(), std::nullopt))};
  Channel first(options);  // Pays the costs of the first connection, which the others do not have.
  throw_if_error(connect_all({&first}, after(seconds(60))).status());

  const int64_t memory = process_memory(server->pid()).resident;
  const double cpu = cpu_seconds(server->pid());
  const auto start = std::chrono::steady_clock::now();
  Connections connections(options);
  int answered = 0;
  for (int left = count; left > 0; left -= at_once)
    answered += connections.add(std::min(left, at_once));
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "{\"connections\": %d, \"answered\": %d, \"established\": %lld, \"seconds\": %.3f, "
      "\"server_cpu_ms_per_connection\": %.2f, \"server_kib_per_connection\": %.1f, "
      "\"server_threads\": %lld}\n",
      count, answered, static_cast<long long>(established(address.substr(address.rfind(':') + 1))),
      took, (cpu_seconds(server->pid()) - cpu) * 1000 / count,
      static_cast<double>(process_memory(server->pid()).resident - memory) / 1024 / count,
      static_cast<long long>(status_field(server->pid(), "Threads")));
  return answered == count ? 0 : 1;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::stoi(argv[1]) : 1000;
  return trireme::bench::measure(count, argc > 2 ? std::stoi(argv[2]) : count);
}
