#include "trireme/rpc/async_hello.h"

#include <utility>

namespace trireme {

void say_hello(Channel& channel, const CallOptions& options,
               absl::AnyInvocable<void(absl::StatusOr<Hello>)> on_hello) {
  channel.call(kHelloMethod, internal::hello_request(channel.options()), options,
               [on_hello = std::move(on_hello)](const Response& answer) mutable {
                 on_hello(internal::read_hello(answer));
               });
}

}  // namespace trireme
