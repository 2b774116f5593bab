#include "trireme/rpc/timer.h"

#include <grpcpp/alarm.h>

#include <utility>

#include "trireme/rpc/completion_loop.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {
namespace {

class TimedWork final : public Tag {
 public:
  explicit TimedWork(Work work) : work_(std::move(work)) {}

  void set(Time time) { alarm_.Set(&CompletionLoop::next().queue(), to_timespec(time), start()); }
  void on_event(bool) override {
    Work work = std::move(work_);
    delete this;
    work();
  }

 private:
  Work work_;
  grpc::Alarm alarm_;
};

}  // namespace

void run_at(Time time, Work work) {
  (new TimedWork(std::move(work)))->set(time);
}

}  // namespace trireme::internal
