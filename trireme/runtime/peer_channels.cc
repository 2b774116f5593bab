#include "trireme/runtime/peer_channels.h"

namespace trireme {

absl::StatusOr<std::shared_ptr<Channel>> PeerChannels::to(const TaskId& task) {
  TRIREME_ASSIGN_OR_RETURN(const std::string address,
                           try_call([&] { return context_.spec.address(task); }));
  MutexLock lock(mutex_);
  std::shared_ptr<Channel>& channel = channels_[task];
  if (channel == nullptr) {
    channel = std::make_shared<Channel>(ChannelOptions{.address = address,
                                                       .task = task.to_string(),
                                                       .caller = context_.incarnation,
                                                       .caller_task = context_.task.to_string(),
                                                       .credentials = context_.credentials,
                                                       .faults = context_.faults,
                                                       .serving = context_.serving});
  }
  return channel;
}

RetryPolicy step_retry() {
  return {.attempt_time = std::chrono::seconds(2),
          .first_delay = std::chrono::milliseconds(20),
          .longest_delay = std::chrono::milliseconds(500),
          .unreachable_time = std::chrono::seconds(1)};
}

}  // namespace trireme
