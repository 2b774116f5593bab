#include "trireme/rpc/async_hello.h"

#include <utility>

#include "trireme/base/version.h"
#include "trireme/rpc/hello.pb.h"

namespace trireme {

void say_hello(Channel& channel, const CallOptions& options,
               absl::AnyInvocable<void(absl::StatusOr<Hello>)> on_hello) {
  HelloRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_release(version());
  request.set_expected_task(channel.task());
  channel.call(kHelloMethod, make_message(request), options,
               [on_hello = std::move(on_hello)](const Response& answer) mutable {
                 if (!answer.ok()) return on_hello(answer.status());
                 const auto response = parse_body<HelloResponse>(*answer);
                 if (!response.ok()) return on_hello(response.status());
                 on_hello(Hello{response->task(), response->incarnation(), response->release(),
                                response->pid()});
               });
}

}  // namespace trireme
