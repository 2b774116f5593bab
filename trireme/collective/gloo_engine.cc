// LibTorch has Gloo, but not its headers. Those of Debian's libgloo-dev are of another version, so
// no object of Gloo may be used here except through LibTorch's own functions.
//
// Gloo neither compares the calls of the ranks nor says for which rank it waits, and a process ends
// when it receives more bytes than it expects. So the ranks agree on each call before it starts.

#include "trireme/collective/gloo_engine.h"

#include <ATen/ops/empty.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <stop_token>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/collective/agreement.h"
#include "trireme/collective/c10d_reduction.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;

// A wait for Gloo that nobody ended would last this long.
constexpr milliseconds kLongestGloo = std::chrono::hours(24);
// Time in which an operation may complete after the group has failed.
constexpr auto kGlooTimeToComplete = milliseconds(200);
// Time for which a rank waits, after an error of Gloo, for the group to name the cause.
constexpr auto kGlooTimeToFindCause = std::chrono::seconds(15);

milliseconds gloo_timeout(Time deadline) {
  const Time now = Clock::real().now();
  if (deadline <= now) return milliseconds(1);
  return std::chrono::ceil<milliseconds>(std::min<Duration>(deadline - now, kLongestGloo));
}

// Gives Gloo the addresses of the members. Each member sets one key, its own, before it reads those
// of others; then the members exchange theirs.
class GlooAddressStore final : public c10d::Store {
 public:
  GlooAddressStore(Group& group, Time deadline) : group_(group), deadline_(deadline) {}

  // Returns the error of the exchange.
  const absl::Status& status() const { return status_; }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    own_ = absl::StrCat(key, "\n", std::string(value.begin(), value.end()));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    if (values_.empty()) gather();
    const auto value = values_.find(key);
    TORCH_CHECK(value != values_.end(), "no rank has set ", key);
    return value->second;
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

  // Gloo does not use the rest of the interface.
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this);
  }
  int64_t add(const std::string&, int64_t) override { TORCH_CHECK(false, "add() is missing"); }
  bool deleteKey(const std::string&) override { return false; }
  bool check(const std::vector<std::string>&) override { return !values_.empty(); }
  int64_t getNumKeys() override { return static_cast<int64_t>(values_.size()); }

 private:
  void gather() {
    auto all = group_.exchange("gloo/addresses", own_, deadline_);
    status_ = all.status();
    TORCH_CHECK(all.ok(), std::string(status_.message()));
    for (const std::string& text : *all) {
      const size_t end = text.find('\n');
      TORCH_CHECK(end != std::string::npos, "a rank has set no address");
      values_[text.substr(0, end)] = {text.begin() + static_cast<int64_t>(end) + 1, text.end()};
    }
  }

  Group& group_;
  const Time deadline_;
  std::string own_;
  std::map<std::string, std::vector<uint8_t>> values_;
  absl::Status status_;
};

// The state of an operation, which Gloo's thread completes.
struct GlooOperation {
  Mutex mutex;
  CondVar changed;
  bool done ABSL_GUARDED_BY(mutex) = false;
  std::string error ABSL_GUARDED_BY(mutex);  // empty if it succeeded

  // Blocks until it is complete, `stop` is requested, or the time has come. Returns true if it is
  // complete.
  bool wait(const std::stop_token& stop, Time until) {
    const std::stop_callback wake(stop, [&] {
      MutexLock lock(mutex);
      changed.notify_all();
    });
    MutexLock lock(mutex);
    while (!done && !stop.stop_requested() && changed.wait_until(mutex, until)) {
    }
    return done;
  }
};

// Errors of LibTorch have a list of stack frames after the first line.
std::string first_line(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

template <typename F>
absl::Status try_gloo(F&& function) {
  const absl::Status status = try_call(std::forward<F>(function));
  return status.ok() ? status : make_status(error_code(status), first_line(status.message()));
}

// Returns the values of a tensor as bytes, so that Gloo moves types that it does not know.
at::Tensor gloo_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

absl::Status check_gloo_dtype(const CollectiveCall& call) {
  const bool reduces =
      call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter;
  switch (reduces ? call.input.scalar_type() : at::kByte) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return absl::OkStatus();
    default:
      return make_status(ErrorCode::kUnimplemented,
                         absl::StrCat(describe_call(call), " failed: Gloo does not combine values ",
                                      "of the type ", dtype_name(call.input.scalar_type()),
                                      "; use the implementation RING"));
  }
}

class GlooEngine final : public CollectiveEngine {
 public:
  GlooEngine(Group& group, c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : group_(group), gloo_(std::move(gloo)) {}
  ~GlooEngine() override {
    // Gloo cannot end a transfer that stopped halfway before its deadline, and its destructor would
    // wait for it. Its threads use nothing of this engine, so they may stay.
    if (operation_ && !operation_->wait({}, Time::min())) gloo_.release();
  }

  const char* name() const override { return "gloo"; }

  absl::Status run(const CollectiveCall& call) override {
    if (group_.size() == 1) {
      make_alone(call);
      return absl::OkStatus();
    }
    TRIREME_RETURN_IF_ERROR(group_.failure());
    TRIREME_RETURN_IF_ERROR(check_gloo_dtype(call));
    TRIREME_RETURN_IF_ERROR(agree_on_call(group_, call));
    TRIREME_RETURN_IF_ERROR(try_gloo([&] { start(call); }));
    // If a rank has completed this call and failed the group in the next one, this rank completes
    // the call too.
    if (!operation_->wait(group_.stop_token(), call.deadline) &&
        !operation_->wait({}, std::min(call.deadline, after(kGlooTimeToComplete)))) {
      abort();
      TRIREME_RETURN_IF_ERROR(group_.failure());
      return make_status(
          ErrorCode::kDeadlineExceeded,
          absl::StrCat(describe_own(group_, call), " did not complete in time: all ranks ",
                       "make the call, but Gloo is not done"));
    }
    TRIREME_RETURN_IF_ERROR(operation_error(call));
    if (call.kind == CollectiveKind::kReduceScatter) {
      const int64_t part = call.output.numel();
      call.output.view({-1}).copy_(reduced_.view({-1}).narrow(0, part * group_.rank(), part));
    }
    reduced_ = at::Tensor();
    if (call.output.defined()) finish_mean(call.reduction, call.output, group_.size());
    return absl::OkStatus();
  }

 private:
  void start(const CollectiveCall& call) {
    // Gloo has no reduce_scatter; all results are made, in a copy.
    reduced_ = call.kind == CollectiveKind::kReduceScatter ? call.input.clone() : call.output;
    auto operation = std::make_shared<GlooOperation>();
    operation_ = operation;
    work_of(call)->getFuture()->addCallback([operation](c10::ivalue::Future& future) {
      MutexLock lock(operation->mutex);
      operation->done = true;
      if (future.hasError()) operation->error = first_line(future.tryRetrieveErrorMessage());
      operation->changed.notify_all();
    });
  }

  c10::intrusive_ptr<c10d::Work> work_of(const CollectiveCall& call) {
    // Our own deadline comes first, since its error says more.
    const milliseconds timeout = gloo_timeout(call.deadline) + std::chrono::seconds(1);
    // Nothing is to be moved, but the call still waits for all ranks.
    const bool empty = !call.input.defined() || call.input.numel() == 0;
    switch (empty ? CollectiveKind::kBarrier : call.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter: {
        std::vector<at::Tensor> tensors = {reduced_};
        c10d::AllreduceOptions options;
        options.reduceOp = c10d_reduction(call.reduction);
        options.timeout = timeout;
        return gloo_->allreduce(tensors, options);
      }
      case CollectiveKind::kAllGather: {
        at::Tensor input = gloo_bytes(call.input), output = gloo_bytes(call.output);
        c10d::AllgatherOptions options;
        options.timeout = timeout;
        return gloo_->_allgather_base(output, input, options);
      }
      case CollectiveKind::kBroadcast: {
        std::vector<at::Tensor> tensors = {gloo_bytes(call.output)};
        c10d::BroadcastOptions options;
        options.rootRank = call.root;
        options.timeout = timeout;
        return gloo_->broadcast(tensors, options);
      }
      case CollectiveKind::kAllToAll: {
        at::Tensor input = gloo_bytes(call.input), output = gloo_bytes(call.output);
        std::vector<int64_t> equal_parts;
        c10d::AllToAllOptions options;
        options.timeout = timeout;
        return gloo_->alltoall_base(output, input, equal_parts, equal_parts, options);
      }
      case CollectiveKind::kBarrier:
        break;
    }
    c10d::BarrierOptions options;
    options.timeout = timeout;
    return gloo_->barrier(options);
  }

  // Returns the error with which Gloo ended the operation. A connection breaks when a member is
  // lost, and Gloo does not say which one; so this waits for the group to find that out.
  absl::Status operation_error(const CollectiveCall& call) {
    std::string error;
    {
      MutexLock lock(operation_->mutex);
      error = operation_->error;
    }
    if (error.empty()) return absl::OkStatus();
    GlooOperation cause;  // is never complete
    cause.wait(group_.stop_token(), std::min(call.deadline, after(kGlooTimeToFindCause)));
    TRIREME_RETURN_IF_ERROR(group_.failure());
    return make_status(ErrorCode::kUnavailable,
                       absl::StrCat(describe_own(group_, call), " failed in Gloo: ", error));
  }

  // Ends the operation. LibTorch has no function for it, but if the time limit of one operation
  // passes, Gloo ends all others with an error.
  void abort() {
    std::vector<at::Tensor> tensors = {at::empty({1}, at::kByte)};
    (void)try_gloo([&] { gloo_->recvAnysource(tensors, 0)->wait(milliseconds(1)); });
    operation_->wait({}, after(milliseconds(50)));
  }

  Group& group_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::shared_ptr<GlooOperation> operation_;  // the last one
  at::Tensor reduced_;                        // tensor that the last one reduces, in place
};

std::string gloo_host(const Group& group) {
  const std::string& address = group.members()[group.rank()].address;
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

absl::Status make_gloo_device(const Group& group, c10d::ProcessGroupGloo::Options& options) {
  if (group.encrypted()) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "the tasks have certificates, and the traffic of Gloo would not be "
                       "encrypted; use the implementation RING");
  }
  const std::string host = gloo_host(group);
  const absl::Status made =
      try_call([&] { options.devices = {c10d::ProcessGroupGloo::createDeviceForHostname(host)}; });
  if (made.ok()) return made;
  return make_status(
      ErrorCode::kFailedPrecondition,
      absl::StrCat("Gloo cannot listen on '", host,
                   "', the host of this task in the cluster spec: ", std::string(made.message())));
}

// Gloo writes to connections whose other end is gone, and SIGPIPE would end the process without a
// word. Programs that handle the signal themselves keep their handler.
void ignore_broken_pipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_gloo_engine(Group& group, Time deadline) {
  if (group.size() == 1) return std::make_unique<GlooEngine>(group, nullptr);
  ignore_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(gloo_timeout(deadline));
  options->threads = 1;  // for the one operation at a time
  TRIREME_RETURN_IF_ERROR(
      agree_on_setup(group, "gloo/device", make_gloo_device(group, *options), deadline));
  auto store = c10::make_intrusive<GlooAddressStore>(group, deadline);
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  const absl::Status connected = try_gloo([&] {
    gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, group.rank(), group.size(), options);
  });
  TRIREME_RETURN_IF_ERROR(store->status());
  TRIREME_RETURN_IF_ERROR(agree_on_setup(group, "gloo/connected", connected, deadline));
  return std::make_unique<GlooEngine>(group, std::move(gloo));
}

}  // namespace trireme::internal
