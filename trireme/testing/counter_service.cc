#include "trireme/testing/counter_service.h"

#include "absl/strings/numbers.h"

namespace trireme {

std::vector<Method> CounterService::methods() {
  return {{kAdd, Roles::all(), Repeats::kAnsweredOnce,
           [this](ServerCall call) {
             int64_t amount = 0;
             if (!absl::SimpleAtoi(call.request().body, &amount)) {
               return call.respond(
                   make_status(ErrorCode::kInvalidArgument, "the body is not a number"));
             }
             call.respond(number(value_ += amount));
           }},
          {kRead, Roles::all(), Repeats::kHarmless,
           [this](ServerCall call) { call.respond(number(value_)); }}};
}

}  // namespace trireme
