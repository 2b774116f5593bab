#include "trireme/ps/variable_list.h"

#include <utility>

#include "trireme/ps/packing.h"
#include "trireme/ps/variable_methods.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/tensor/dtype.h"

namespace trireme {
namespace {

absl::StatusOr<VariableList> to_list(const Response& answer) {
  if (!answer.ok()) return answer.status();
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<ListVariablesResponse>(*answer));
  VariableList list{.bytes = response.bytes(),
                    .limit = response.limit(),
                    .writers = response.writers(),
                    .record_bytes = response.record_bytes()};
  for (const auto& entry : response.variables()) {
    TRIREME_ASSIGN_OR_RETURN(const c10::ScalarType dtype, dtype_from_wire(entry.shape().dtype()));
    const internal::TensorShape shape{dtype,
                                      {entry.shape().sizes().begin(), entry.shape().sizes().end()}};
    list.variables.push_back({.job = entry.job(),
                              .container = entry.container(),
                              .name = entry.shape().name(),
                              .shape = internal::to_string(shape),
                              .optimizer = entry.optimizer(),
                              .bytes = entry.bytes(),
                              .state_bytes = entry.state_bytes(),
                              .record_bytes = entry.record_bytes(),
                              .reads = entry.reads(),
                              .updates = entry.updates()});
  }
  return list;
}

CallOptions options(Time deadline) {
  return {.deadline = deadline, .large_response = true};
}

}  // namespace

void list_variables(Channel& channel, Time deadline,
                    absl::AnyInvocable<void(absl::StatusOr<VariableList>)> done) {
  channel.call(kListVariables, make_message(ListVariablesRequest()), options(deadline),
               [done = std::move(done)](Response answer) mutable { done(to_list(answer)); });
}

absl::StatusOr<VariableList> list_variables(Channel& channel, Time deadline) {
  return to_list(
      channel.call(kListVariables, make_message(ListVariablesRequest()), options(deadline)));
}

}  // namespace trireme
