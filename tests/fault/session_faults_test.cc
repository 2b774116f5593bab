// When a task is killed or frozen in mid-step, the step fails in time with an error that names the
// task, and the session continues once the task is back. Lost, duplicated and delayed calls do not
// change results. TRIREME_HURTS sets how many times a task is killed or frozen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <future>
#include <random>
#include <stop_token>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/cluster_status.h"
#include "trireme/runtime/session.h"
#include "trireme/server/services.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using torch::Tensor;

const int64_t kHurtTasks = setting("TRIREME_HURTS", 4);

// Returns a step whose value moves from worker to worker `hops` times.
Function<Tensor(const Tensor&)> long_step(int hops) {
  return function("long_step", std::function<Tensor(const Tensor&)>([hops](const Tensor& input) {
                    Tensor x = input;
                    for (int i = 0; i < hops; ++i) {
                      DeviceScope on("/job:worker/task:" + std::to_string(i % 3));
                      x = torch::tanh(x) + 1;
                    }
                    return x;
                  }),
                  {.check_capture = false});
}

// A step that failed.
struct FailedStep {
  int number = 0;
  Error error;
};

TEST(SessionFaults, ATaskLostInMidStepIsNamedAndTheSessionContinues) {
  constexpr auto kTimeout = seconds(20);
  const TaskId master{"worker", 0};
  ProcessCluster cluster({{.workers = 3, .ps = 0}});
  Session session(cluster.target(master), {.timeout = kTimeout});
  const auto step = long_step(600);
  const Tensor x = torch::rand({1000});
  const Time begin = Clock::real().now();
  const Tensor expected = session.run(step, x);
  const auto usual =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::real().now() - begin).count();
  std::mt19937 random(7);
  // Number of faults that ended the step during which they were injected. A fault may also fall
  // between two steps, or into the last moments of one; then it is not counted, and another
  // follows.
  int interrupted = 0;
  for (int i = 0; interrupted < kHurtTasks && i < 2 * kHurtTasks; ++i) {
    const TaskId task = {"worker", static_cast<int>(random() % 3)};
    const bool freeze = random() % 2 == 0;
    std::atomic<int> running = 0;  // Number of the step that runs; 0 between two steps.
    auto steps = std::async(std::launch::async, [&]() -> FailedStep {
      // Runs steps one after another until one fails.
      int number = 1;
      for (const Time limit = after(kTimeout); Clock::real().now() < limit; ++number) {
        running = number;
        const Error result = error_of([&] { session.run(step, x); });
        if (result.code() != ErrorCode::kOk) return {number, result};
        running = 0;
      }
      return {number, Error(ErrorCode::kOk, "no step failed")};
    });
    // Injects the fault at a random moment of the first two steps.
    const Time moment = after(std::chrono::microseconds(random() % (2 * usual + 1)));
    while (Clock::real().now() < moment) std::this_thread::yield();
    const int hit = running;
    const Time fault_time = Clock::real().now();
    freeze ? cluster.freeze(task) : cluster.kill(task);
    const FailedStep failed = steps.get();
    // Health checks of the master notice a lost task long before the time limit of the step. Only a
    // frozen master is noticed by its silence alone.
    const Duration limit = freeze && task == master ? kTimeout + seconds(2) : Duration(seconds(8));
    const bool in_time = Clock::real().now() - fault_time < limit;
    const std::string fault = (freeze ? "frozen " : "killed ") + task.to_string();
    EXPECT_NE(failed.error.code(), ErrorCode::kOk) << fault;
    EXPECT_TRUE(in_time) << fault;
    EXPECT_THAT(failed.error.what(), testing::HasSubstr(task.to_string())) << fault;
    if (in_time && failed.number == hit) ++interrupted;
    freeze ? cluster.thaw(task) : cluster.start(task);
    cluster.wait_until_up();
    // At most one more step fails, because the task has a new incarnation.
    const Error second = error_of([&] { session.run(step, x); });
    if (second.code() != ErrorCode::kOk) {
      EXPECT_TRUE(session.run(step, x).equal(expected)) << second.what();
    }
    cluster.wait_until_no_steps();
  }
  EXPECT_EQ(interrupted, kHurtTasks);
}

TEST(SessionFaults, AStepIsCancelledEvenIfItsCallEndsBeforeTheRequestToStopReachesIt) {
  const PortReservation first = value_or_throw(PortReservation::make());
  const PortReservation second = value_or_throw(PortReservation::make());
  const ClusterSpec spec{{"worker", {first.address(), second.address()}}};
  // No value ever reaches another task, so the step lasts until it is cancelled.
  const auto faults = std::make_shared<FaultInjector>(
      1, std::vector<FaultRule>{{.method = "/trireme.Worker/Deliver", .lose_request = 1}});
  std::vector<std::unique_ptr<TaskServer>> servers;
  for (const TaskId& task : spec.all_tasks()) {
    servers.push_back(value_or_throw(TaskServer::start(
        {.spec = spec, .task = task, .faults = faults, .services = all_services()})));
  }
  const auto steps = [&] {
    uint64_t sum = 0;
    for (const auto& [task, answer] : describe_cluster(spec, {})) {
      sum += value_or_throw(answer).counters.at("steps_active");
    }
    return sum;
  };
  const auto wait_for_steps = [&](uint64_t number) {
    for (const Time limit = after(seconds(20)); Clock::real().now() < limit;) {
      if (steps() == number) return true;
    }
    return false;
  };
  Session session("grpc://" + first.address());
  const auto step = function("step", std::function<Tensor(const Tensor&)>([](const Tensor& x) {
                               const Tensor here = torch::tanh(x);
                               const DeviceScope on("/job:worker/task:1");
                               return torch::tanh(here);
                             }));
  std::stop_source stop;
  auto run = std::async(std::launch::async, [&] {
    return error_of([&] { session.run({.stop = stop.get_token()}, step, torch::rand({4})); });
  });
  ASSERT_TRUE(wait_for_steps(2));
  // The last callback is the first to be called. It holds up the others until the attempt of the
  // call has timed out, and the call is not tried again after a request to stop.
  const std::stop_callback hold(stop.get_token(), [&] { run.wait(); });
  stop.request_stop();
  EXPECT_NE(run.get().code(), ErrorCode::kOk);
  EXPECT_TRUE(wait_for_steps(0)) << "the step was not cancelled";
}

TEST(SessionFaults, LostDuplicatedAndDelayedCallsDoNotChangeResults) {
  // Faults are injected into the calls between the servers, not into those of the client.
  std::vector<PortReservation> ports;
  std::vector<std::string> addresses;
  for (int i = 0; i < 3; ++i) {
    ports.push_back(value_or_throw(PortReservation::make()));
    addresses.push_back(ports.back().address());
  }
  const ClusterSpec spec{{"worker", addresses}};
  auto faults = std::make_shared<FaultInjector>(
      11, std::vector<FaultRule>{{.lose_request = 0.1,
                                  .lose_response = 0.1,
                                  .duplicate = 0.1,
                                  .delay = 0.1,
                                  .reorder = 0.1,
                                  .longest_delay = milliseconds(5)}});
  std::vector<std::unique_ptr<TaskServer>> servers;
  for (const TaskId& task : spec.all_tasks()) {
    servers.push_back(value_or_throw(TaskServer::start(
        {.spec = spec, .task = task, .faults = faults, .services = all_services()})));
  }
  std::optional<Variable> v;
  {
    DeviceScope on("/job:worker/task:2");
    v.emplace("v", torch::zeros({}, torch::kInt64));
  }
  const auto step = function("step", [&](const Tensor& x) {
    Tensor y;
    {
      DeviceScope on("/job:worker/task:1");
      y = x * 2;
    }
    v->assign_add(y);
    return y + 1;
  });
  Session session("grpc://" + addresses[0], {.timeout = seconds(120)});
  std::vector<std::future<Tensor>> results;
  for (int i = 0; i < 40; ++i) results.push_back(session.start(step, torch::tensor(i)));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(results[i].get().item<int64_t>(), 2 * i + 1);
  // Each step changed the variable once.
  EXPECT_EQ(session.run([&] { return v->read() + 0; }).item<int64_t>(), 40 * 39);
  EXPECT_GT(faults->injected(), 10u);
}

}  // namespace
}  // namespace trireme
