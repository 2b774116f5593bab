#include "trireme/runtime/server_service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "trireme/base/version.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/runtime/server.pb.h"

namespace trireme {
namespace {

constexpr char kDescribe[] = "/trireme.Server/Describe";
constexpr char kEndJob[] = "/trireme.Server/EndJob";

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

class ServerService final : public Service {
 public:
  explicit ServerService(TaskContext& context) : context_(context) {}

  std::vector<Method> methods() override {
    return {make_method<DescribeRequest, DescribeResponse>(
                kDescribe, Roles::all(), Repeats::kHarmless,
                [this](const DescribeRequest&) { return describe(); }),
            make_method<EndJobRequest, EndJobResponse>(
                kEndJob, {Role::kChief, Role::kClient}, Repeats::kAnsweredOnce,
                [this](const EndJobRequest& request) { return end_job(request); })};
  }

 private:
  DescribeResponse describe() const {
    DescribeResponse response;
    response.set_task(context_.task.to_string());
    response.set_address(context_.address);
    response.set_incarnation(context_.incarnation);
    response.set_uptime_ms(std::chrono::duration_cast<std::chrono::milliseconds>(
                               Clock::real().now() - context_.started)
                               .count());
    response.set_release(version());
    response.set_protocol_version(kProtocolVersion);
    response.set_pid(getpid());
    response.set_host(host_name());
    for (const std::string& name : context_.devices.names(context_.task)) {
      response.add_devices(name);
    }
    for (const auto& [name, value] : context_.metrics.counters()) {
      (*response.mutable_counters())[name] = value;
    }
    for (const auto& [name, value] : context_.metrics.gauges()) {
      (*response.mutable_counters())[name] = static_cast<uint64_t>(std::max<int64_t>(value, 0));
    }
    if (context_.waits) {
      for (const std::string& line : context_.waits()) response.add_waits(line);
    }
    return response;
  }

  EndJobResponse end_job(const EndJobRequest& request) const {
    EndJobResponse response;
    response.set_exits(context_.end_job(request.reason()));
    return response;
  }

  TaskContext& context_;
};

absl::StatusOr<TaskDescription> to_description(const Response& answer) {
  if (!answer.ok()) return answer.status();
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<DescribeResponse>(*answer));
  return TaskDescription{.task = response.task(),
                         .address = response.address(),
                         .incarnation = response.incarnation(),
                         .uptime = std::chrono::milliseconds(response.uptime_ms()),
                         .release = response.release(),
                         .pid = response.pid(),
                         .host = response.host(),
                         .devices = {response.devices().begin(), response.devices().end()},
                         .counters = {response.counters().begin(), response.counters().end()},
                         .waits = {response.waits().begin(), response.waits().end()}};
}

}  // namespace

std::unique_ptr<Service> make_server_service(TaskContext& context) {
  return std::make_unique<ServerService>(context);
}

void describe_task(Channel& channel, const CallOptions& options,
                   absl::AnyInvocable<void(absl::StatusOr<TaskDescription>)> done) {
  channel.call(kDescribe, make_message(DescribeRequest()), options,
               [done = std::move(done)](Response answer) mutable { done(to_description(answer)); });
}

absl::StatusOr<TaskDescription> describe_task(Channel& channel, const CallOptions& options) {
  using Description = absl::StatusOr<TaskDescription>;
  return call_and_wait<Description>([&](absl::AnyInvocable<void(Description)> done) {
    describe_task(channel, options, std::move(done));
  });
}

absl::StatusOr<bool> end_job(Channel& channel, const std::string& reason, Time deadline) {
  if (channel.incarnation() == 0) TRIREME_RETURN_IF_ERROR(channel.hello(deadline).status());
  EndJobRequest request;
  request.set_reason(reason);
  TRIREME_ASSIGN_OR_RETURN(const Message answer,
                           channel.call(kEndJob, make_message(request), {.deadline = deadline}));
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<EndJobResponse>(answer));
  return response.exits();
}

}  // namespace trireme
