#include "trireme/runtime/graph_service.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/task_server.h"

namespace trireme {
namespace {

using std::chrono::seconds;

// Records the names of the threads that join and renew a job. Thread-safe.
class JobThreads {
 public:
  // Notes that the calling thread does `work`.
  void note(const std::string& work) {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    MutexLock lock(mutex_);
    threads_[work].emplace_back(name);
  }
  // Returns the threads that have done `work`, in order.
  std::vector<std::string> of(const std::string& work) {
    MutexLock lock(mutex_);
    return threads_[work];
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::vector<std::string>> threads_ ABSL_GUARDED_BY(mutex_);
};

class RecordedJob final : public SessionJob {
 public:
  explicit RecordedJob(JobThreads& threads) : threads_(threads) {}
  uint64_t generation() const override { return 3; }
  absl::Status begin(const TaskId&, uint64_t, Time) override { return absl::OkStatus(); }
  void renew(Time) override { threads_.note("renew"); }
  void leave() override {}

 private:
  JobThreads& threads_;
};

// Lets sessions join jobs, in place of the service of ps/.
class RecordedJobs final : public Service {
 public:
  RecordedJobs(TaskContext& context, JobThreads& threads) {
    context.join_job = [&threads](const SessionJobOptions&, Time) {
      threads.note("join");
      return std::make_shared<RecordedJob>(threads);
    };
  }
  std::vector<Method> methods() override { return {}; }
};

class GraphServiceTest : public testing::Test {
 protected:
  std::unique_ptr<TaskServer> start_server() {
    const auto make_jobs = [this](TaskContext& context) -> std::unique_ptr<Service> {
      return std::make_unique<RecordedJobs>(context, threads_);
    };
    return value_or_throw(TaskServer::start({.spec = ClusterSpec{{"worker", {port_.address()}}},
                                             .task = {"worker", 0},
                                             .devices = DeviceList::parse("cpu:1"),
                                             .services = {make_jobs, make_graph_service}}));
  }
  // Opens or renews a session, and returns the generation of its job.
  uint64_t open(uint64_t session, const std::string& job) {
    OpenSessionRequest request;
    request.set_session(session);
    request.set_lease_ms(60'000);
    request.set_job(job);
    request.set_container(job);
    const Message answer = value_or_throw(channel_.call(
        internal::kOpenSession, make_message(request), {.deadline = after(seconds(20))}));
    return value_or_throw(parse_body<OpenSessionResponse>(answer)).generation();
  }

  JobThreads threads_;
  const PortReservation port_ = value_or_throw(PortReservation::make());
  const std::unique_ptr<TaskServer> server_ = start_server();
  Channel channel_{ChannelOptions{.address = port_.address()}};
};

// A thread that serves calls must not wait for other tasks.
TEST_F(GraphServiceTest, ASessionJoinsItsJobOnAThreadThatMayBlock) {
  EXPECT_EQ(open(5, "ads"), 3u);
  EXPECT_EQ(open(6, ""), 0u);
  EXPECT_EQ(open(6, "ads"), 3u) << "it was open without a job";
  EXPECT_EQ(threads_.of("join"), (std::vector<std::string>{"master", "master"}));
}

// The few threads that may block can all be busy when a renewal arrives.
TEST_F(GraphServiceTest, ARenewalDoesNotWaitForAThreadThatMayBlock) {
  open(5, "ads");
  EXPECT_EQ(open(5, "ads"), 3u);
  EXPECT_EQ(threads_.of("join").size(), 1u);
  ASSERT_EQ(threads_.of("renew").size(), 1u);
  EXPECT_NE(threads_.of("renew")[0], "master");
}

}  // namespace
}  // namespace trireme
