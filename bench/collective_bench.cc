// One rank of a group that reduces tensors, for bench/compare.
//
//   collective_bench ADDRESS,ADDRESS,… RANK [CERTIFICATES]
//   collective_bench --certificates FOLDER ADDRESS,ADDRESS,…
//
// Executes each line of its input, which all ranks get: "IMPLEMENTATION BYTES CALLS", where the
// implementation is shm (a buffer in shared memory), shm_copy (any tensor), ring, ring_parcels (the
// ring without lanes) or gloo. Answers with the line "done" and figures of this rank: the median
// and the mean of the seconds of a call, the seconds of processor time, the parcels and their bytes
// that the rank sent, all for each call, and the seconds that it took to form the group.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "trireme/base/status.h"
#include "trireme/collective/cluster_group.h"
#include "trireme/collective/communicator.h"
#include "trireme/collective/forwarding_group.h"
#include "trireme/collective/group_service.h"
#include "trireme/rpc/certificates.h"
#include "trireme/runtime/task_server.h"

namespace trireme::bench {
namespace {

ClusterSpec spec_of(const std::string& addresses) {
  const std::vector<std::string> list = absl::StrSplit(addresses, ',');
  return ClusterSpec(std::map<std::string, TaskAddresses>{{"worker", list}});
}

Credentials credentials_of(const std::string& address, const std::string& certificates,
                           const TaskId& task) {
  if (!certificates.empty()) return value_or_throw(Credentials::from_folder(certificates, task));
  return address.starts_with("127.") ? Credentials::loopback() : Credentials::insecure();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the processor time of all threads of this process, in seconds.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// A group that counts the parcels which its member sends. Without lanes all bytes are in parcels.
class CountingGroup final : public internal::ForwardingGroup {
 public:
  CountingGroup(std::shared_ptr<internal::Group> group, bool uses_lanes)
      : ForwardingGroup(*group), group_(std::move(group)), uses_lanes_(uses_lanes) {}

  int64_t parcels() const { return parcels_; }
  int64_t bytes() const { return bytes_; }

  std::shared_ptr<internal::LaneTable> lanes() override {
    return uses_lanes_ ? ForwardingGroup::lanes() : nullptr;
  }
  void send(int to, internal::Parcel parcel,
            std::function<void(const absl::Status&)> done) override {
    ++parcels_;
    if (parcel.payload.defined()) bytes_ += static_cast<int64_t>(parcel.payload.nbytes());
    ForwardingGroup::send(to, std::move(parcel), std::move(done));
  }

 private:
  const std::shared_ptr<internal::Group> group_;
  const bool uses_lanes_;
  std::atomic<int64_t> parcels_ = 0, bytes_ = 0;
};

struct ReduceFigures {
  std::vector<double> seconds;  // of each call
  // Means over the calls.
  double cpu = 0;
  double parcels = 0, bytes = 0;
  double form_seconds = 0;  // time to form the group
};

class Rank {
 public:
  Rank(const std::string& addresses, int rank, const std::string& certificates)
      : spec_(spec_of(addresses)), tasks_(spec_.tasks("worker")) {
    const TaskId own = {"worker", rank};
    server_ = value_or_throw(TaskServer::start(
        {.spec = spec_,
         .task = own,
         .credentials = credentials_of(spec_.address(own), certificates, own),
         .services = {[](TaskContext& context) { return make_collective_service(context); }}}));
  }

  // Reduces a tensor `calls` times.
  ReduceFigures reduce(const std::string& implementation, int64_t bytes, int calls) {
    const Ranks& ranks = ranks_of(implementation);
    Communicator& communicator = *ranks.communicator;
    prepare(communicator, implementation, bytes);
    tensor_.fill_(1);
    communicator.all_reduce(tensor_).wait();
    if (!tensor_.eq(communicator.size()).all().item<bool>()) {
      throw Error(ErrorCode::kInternal, "the sum is wrong");
    }
    ReduceFigures figures{.form_seconds = ranks.form_seconds};
    const double cpu = cpu_seconds();
    const int64_t parcels = ranks.group->parcels(), sent = ranks.group->bytes();
    for (int i = 0; i < calls; ++i) {
      const auto start = std::chrono::steady_clock::now();
      communicator.all_reduce(tensor_).wait();
      figures.seconds.push_back(seconds_since(start));
    }
    figures.cpu = (cpu_seconds() - cpu) / calls;
    figures.parcels = static_cast<double>(ranks.group->parcels() - parcels) / calls;
    figures.bytes = static_cast<double>(ranks.group->bytes() - sent) / calls;
    return figures;
  }

 private:
  struct Ranks {
    std::shared_ptr<CountingGroup> group;
    std::unique_ptr<Communicator> communicator;
    double form_seconds = 0;
  };

  const Ranks& ranks_of(const std::string& implementation) {
    static const std::map<std::string, CommunicationImplementation> kImplementations = {
        {"shm", CommunicationImplementation::kShm},
        {"shm_copy", CommunicationImplementation::kShm},
        {"ring", CommunicationImplementation::kRing},
        {"ring_parcels", CommunicationImplementation::kRing},
        {"gloo", CommunicationImplementation::kGloo}};
    Ranks& ranks = ranks_[implementation];
    if (ranks.communicator == nullptr) {
      const auto start = std::chrono::steady_clock::now();
      ranks.group = std::make_shared<CountingGroup>(
          value_or_throw(internal::form_group(
              server_->context(), {.name = "bench " + implementation, .tasks = tasks_})),
          implementation != "ring_parcels");
      ranks.communicator =
          std::make_unique<Communicator>(ranks.group, kImplementations.at(implementation));
      ranks.form_seconds = seconds_since(start);
    }
    return ranks;
  }

  // Makes the tensor, unless the last call used the same.
  void prepare(Communicator& communicator, const std::string& implementation, int64_t bytes) {
    const std::string kind = implementation + std::to_string(bytes);
    if (kind == prepared_) return;
    prepared_ = kind;
    tensor_ = at::Tensor();
    tensor_ = implementation == "shm" ? communicator.allocate({bytes / 4}, at::kFloat)
                                      : at::empty({bytes / 4}, at::kFloat);
  }

  const ClusterSpec spec_;
  const std::vector<TaskId> tasks_;
  std::unique_ptr<TaskServer> server_;
  std::map<std::string, Ranks> ranks_;  // by implementation
  at::Tensor tensor_;
  std::string prepared_;
};

int run(const std::string& addresses, int index, const std::string& certificates) {
  at::set_num_threads(1);
  Rank rank(addresses, index, certificates);
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string implementation;
    int64_t bytes = 0;
    int calls = 0;
    std::istringstream(line) >> implementation >> bytes >> calls;
    if (bytes < 4 || calls < 1) throw std::invalid_argument("there is no command '" + line + "'");
    ReduceFigures figures = rank.reduce(implementation, bytes, calls);
    std::vector<double>& seconds = figures.seconds;
    std::ranges::sort(seconds);
    std::printf(
        "done {\"median\": %.9f, \"mean\": %.9f, \"cpu\": %.9f, \"parcels\": %g, \"bytes\": %.10g, "
        "\"form\": %.6f}\n",
        seconds[seconds.size() / 2], std::accumulate(seconds.begin(), seconds.end(), 0.0) / calls,
        figures.cpu, figures.parcels, figures.bytes, figures.form_seconds);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 2 && arguments.size() != 3) {
    std::fprintf(stderr, "collective_bench: wrong arguments; run bench/compare collective\n");
    return 2;
  }
  try {
    if (arguments[0] == "--certificates") {
      const trireme::ClusterSpec spec = trireme::bench::spec_of(arguments.at(2));
      trireme::throw_if_error(trireme::write_certificates(arguments[1], spec).status());
      return 0;
    }
    return trireme::bench::run(arguments[0], std::stoi(arguments[1]),
                               arguments.size() > 2 ? arguments[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collective_bench: %s\n", error.what());
    return 1;
  }
}
