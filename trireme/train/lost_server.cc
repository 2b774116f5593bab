#include "trireme/train/lost_server.h"

#include <chrono>
#include <future>
#include <memory>

#include "absl/strings/match.h"
#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/coordinator/ps_watch.h"
#include "trireme/runtime/health_checker.h"

// A call that fails does not tell whether the server is lost or only slow, so it is asked once
// more, in the way of a coordinator (coordinator/ps_watch.cc): it is lost if its address refuses
// connections, if another incarnation answers there, or if it stays silent.
namespace trireme::internal {
namespace {

constexpr auto kSilence = std::chrono::seconds(15);

absl::Status check_health(const Channel& channel) {
  auto answer = std::make_shared<std::promise<absl::Status>>();
  auto answered = answer->get_future();
  std::make_shared<HealthChecker>()->check(
      std::make_shared<Channel>(channel.options()), channel.incarnation(),
      {.limit = after(kSilence), .unreachable_time = Duration::zero(), .fails_if_refused = true},
      [answer](const absl::Status& status) { answer->set_value(status); });
  return answered.get();  // A check ends at its limit.
}

}  // namespace

absl::Status find_lost_server(const std::shared_ptr<ParameterServerBackend>& backend,
                              const absl::Status& error) {
  // A server that ends answers with ABORTED.
  if (backend == nullptr ||
      (!indicates_lost_task(error) && error_code(error) != ErrorCode::kAborted)) {
    return error;
  }
  PsClient& client = backend->client();
  for (int i = 0; i < client.servers(); ++i) {
    const Channel& channel = client.channel(i);
    if (channel.task() != error_origin(error).task) continue;
    const absl::Status health = check_health(channel);
    if (!indicates_lost_task(health)) return error;
    return lost_server(channel.task(), health);
  }
  return error;
}

bool is_lost_server(const absl::Status& error) {
  return error_code(error) == ErrorCode::kDataLoss &&
         absl::StartsWith(error_origin(error).task, "/job:ps/");
}

void throw_lost_or_error(const absl::Status& error) {
  if (error.ok()) return;
  const Error thrown = to_error(error);
  if (is_lost_server(error)) throw PsLost(thrown.code(), thrown.message(), thrown.origin());
  throw thrown;
}

}  // namespace trireme::internal
