#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/base/peer_clock.h"
#include "trireme/capture/function_step.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/message.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/session_options.h"

// Makes the requests for the steps of a session, and reads the answers of its master
// (session.proto).
namespace trireme::internal {

// Returns HOST:PORT of the target grpc://HOST:PORT of a session. Throws Error for any other text.
std::string address_of_target(const std::string& target);

// Returns an error if the options name a job but no container.
absl::Status check_session_job(const SessionOptions& options);

// Makes the requests that open a session or renew its lease, and remembers what the answers say of
// its job. Thread-safe.
class OpenRequests {
 public:
  OpenRequests(uint64_t session, SessionOptions options)
      : session_(session), options_(std::move(options)) {}

  // Makes a request that is to be sent now.
  Message make() const;
  // Notes the answer to a request: the generation of the job, which never falls, and the clock of
  // the master. Returns the error if there is no answer.
  absl::Status note_answer(const Response& answer);
  // Forgets the clock of the master, which may have been restarted on another machine.
  void forget_clock();

 private:
  const uint64_t session_;
  const SessionOptions options_;
  mutable Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // generation of its job; 0 for none
  PeerClock clock_ ABSL_GUARDED_BY(mutex_);          // clock of the master
};

// Returns an error if the step uses something that a session cannot reach: variables on parameter
// servers, or iterators on workers.
absl::Status check_reachable(const FunctionStep& step);

// Makes a request that registers the graph of a step under this number.
Message register_graph_request(uint64_t session, uint64_t graph, const FunctionStep& step);
// Returns an error if one of the variables of a registered graph does not exist.
absl::Status check_variables_exist(const RegisterGraphResponse& registered);
// Returns the error for a variable that has existed and does not exist any more.
absl::Status no_longer_exists(const RegisterGraphResponse::Variable& variable);
// Returns the error for a variable whose name an earlier one has taken.
absl::Status name_is_taken(const RegisterGraphResponse::Variable& variable);

// Makes a request that runs a step of a registered graph. A step with a token can be cancelled.
Message run_step_request(uint64_t session, uint64_t graph, const FunctionStep& step, Time deadline,
                         uint64_t token);
// Returns the outputs of a step, or nullopt if it did not run because the master does not have its
// graph any more.
absl::StatusOr<std::optional<std::vector<at::Tensor>>> read_outputs(Response response);

}  // namespace trireme::internal
