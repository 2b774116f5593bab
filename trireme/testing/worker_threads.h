#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/cluster/resolver.h"
#include "trireme/rpc/port_reservation.h"

namespace trireme {

// Workers of a cluster for tests: each runs on a thread of this process, with a server of its own.
class WorkerThreads {
 public:
  explicit WorkerThreads(int workers) {
    std::vector<std::string> addresses;
    for (int i = 0; i < workers; ++i) {
      ports_.push_back(value_or_throw(PortReservation::make()));
      addresses.push_back(ports_.back().address());
    }
    spec_ = ClusterSpec{{"worker", addresses}};
  }

  int size() const { return static_cast<int>(ports_.size()); }
  Cluster cluster(int worker) const { return Cluster(spec_, TaskId{"worker", worker}); }

  // Calls `body` for all workers at the same time, and returns the errors of those that failed, by
  // worker. The text is empty for a worker that did not fail.
  std::vector<std::string> run(const std::function<void(const Cluster& me)>& body) const {
    std::vector<std::string> errors(ports_.size());
    std::vector<std::thread> threads;
    for (int worker = 0; worker < size(); ++worker) {
      threads.emplace_back([&, worker] {
        try {
          body(cluster(worker));
        } catch (const std::exception& error) {
          errors[worker] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
};

}  // namespace trireme
