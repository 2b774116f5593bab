// Compiled into the library with the CMake option TRIREME_NCCL. CI compiles it against the headers
// of CUDA and NCCL (tools/check_cuda) and cannot run it.
//
// NCCL does not compare the calls of the ranks, so they agree on each call before it starts.

#include "trireme/collective/nccl_engine.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/collective/agreement.h"
#include "trireme/collective/c10d_reduction.h"

namespace trireme::internal {
namespace {

// Gives the id of the communicator, which rank 0 sets, to the other ranks.
class NcclIdStore final : public c10d::Store {
 public:
  NcclIdStore(Group& group, Time deadline) : group_(group), deadline_(deadline) {}

  // Exchanges the id, or an empty one if this rank has no id to give.
  absl::Status exchange(const std::string& id) {
    if (exchanged_) return absl::OkStatus();
    exchanged_ = true;
    TRIREME_ASSIGN_OR_RETURN(const auto all, group_.exchange("nccl/id", id, deadline_));
    id_.assign(all[0].begin(), all[0].end());
    return id_.empty() ? make_status(ErrorCode::kUnavailable, "rank 0 has no id of NCCL")
                       : absl::OkStatus();
  }

  void set(const std::string&, const std::vector<uint8_t>& value) override {
    if (group_.rank() == 0) throw_if_error(exchange({value.begin(), value.end()}));
  }
  std::vector<uint8_t> get(const std::string&) override {
    throw_if_error(exchange(""));
    return id_;
  }

  // LibTorch asks for keys that tell about failures, of which the group knows already.
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this);
  }
  int64_t add(const std::string&, int64_t value) override { return value; }
  bool deleteKey(const std::string&) override { return false; }
  bool check(const std::vector<std::string>&) override { return false; }
  int64_t getNumKeys() override { return 0; }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  Group& group_;
  const Time deadline_;
  bool exchanged_ = false;
  std::vector<uint8_t> id_;
};

class NcclEngine final : public CollectiveEngine {
 public:
  NcclEngine(Group& group, c10::Device device, c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl)
      : group_(group), device_(device), nccl_(std::move(nccl)) {}

  const char* name() const override { return "nccl"; }

  absl::Status run(const CollectiveCall& call) override {
    TRIREME_RETURN_IF_ERROR(group_.failure());
    TRIREME_RETURN_IF_ERROR(agree_on_call(group_, call));
    return try_call([&] {
      const c10::cuda::CUDAGuard guard(device_.index());
      const bool empty = !call.input.defined() || call.input.numel() == 0;
      // Nothing is to be moved, but the call still waits for all ranks.
      at::Tensor input = empty ? at::zeros({1}, device_) : call.input.view({-1}).to(device_);
      const bool in_place = empty || call.output.is_same(call.input);
      at::Tensor output = in_place ? input : call.output.view({-1}).to(device_);
      throw_if_error(wait(call, *start(empty, call, input, output)));
      if (empty) return;
      finish_mean(call.reduction, output, group_.size());
      // A copy to the memory of the CPU waits for the operations before it.
      if (call.output.data_ptr() != output.data_ptr()) call.output.view({-1}).copy_(output);
    });
  }

 private:
  c10::intrusive_ptr<c10d::Work> start(bool empty, const CollectiveCall& call, at::Tensor& input,
                                       at::Tensor& output) {
    switch (empty ? CollectiveKind::kBarrier : call.kind) {
      case CollectiveKind::kReduceScatter: {
        c10d::ReduceScatterOptions options;
        options.reduceOp = c10d_reduction(call.reduction);
        return nccl_->_reduce_scatter_base(output, input, options);
      }
      case CollectiveKind::kAllGather:
        return nccl_->_allgather_base(output, input);
      case CollectiveKind::kBroadcast: {
        std::vector<at::Tensor> tensors = {output};
        c10d::BroadcastOptions options;
        options.rootRank = call.root;
        return nccl_->broadcast(tensors, options);
      }
      case CollectiveKind::kAllToAll: {
        std::vector<int64_t> equal_parts;
        return nccl_->alltoall_base(output, input, equal_parts, equal_parts);
      }
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBarrier:
        break;
    }
    std::vector<at::Tensor> tensors = {output};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_reduction(call.reduction);
    return nccl_->allreduce(tensors, options);
  }

  // Blocks until the GPU has completed the operation. NCCL cannot wake a thread, so this asks it,
  // less and less often.
  absl::Status wait(const CollectiveCall& call, c10d::Work& work) {
    for (auto pause = std::chrono::microseconds(10); !work.isCompleted();
         pause = std::min(2 * pause, std::chrono::microseconds(1000))) {
      const bool late = Clock::real().now() >= call.deadline;
      if (late || group_.stop_token().stop_requested()) {
        nccl_->abort();
        TRIREME_RETURN_IF_ERROR(group_.failure());
        return make_status(ErrorCode::kDeadlineExceeded,
                           absl::StrCat(describe_own(group_, call), " did not complete in time: ",
                                        "all ranks make the call, but NCCL is not done"));
      }
      std::this_thread::sleep_for(pause);
    }
    work.wait();  // Throws the error of the operation.
    return absl::OkStatus();
  }

  Group& group_;
  const c10::Device device_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
};

// Chooses the GPU of this member. Members on the same machine get different ones, if there are
// enough.
absl::StatusOr<c10::Device> choose_gpu(const Group& group) {
  if (group.encrypted()) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "the tasks have certificates, and the traffic of NCCL would not be "
                       "encrypted; use the implementation RING");
  }
  const int count = c10::cuda::device_count();
  if (count == 0) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "NCCL needs a GPU, and CUDA finds none; use the implementation RING");
  }
  const auto& members = group.members();
  const auto own = members.begin() + group.rank();
  const auto before = std::count_if(members.begin(), own, [&](const GroupMember& member) {
    return member.boot_id == own->boot_id;
  });
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(before % count));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_nccl_engine(Group& group, Time deadline) {
  const absl::StatusOr<c10::Device> device = choose_gpu(group);
  TRIREME_RETURN_IF_ERROR(agree_on_setup(group, "nccl/device", device.status(), deadline));
  auto store = c10::make_intrusive<NcclIdStore>(group, deadline);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::hours(24);  // Calls have deadlines of their own.
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl;
  const absl::Status connected = try_call([&] {
    nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, group.rank(), group.size(), options);
    nccl->eagerConnectSingleDevice(*device);
  });
  (void)store->exchange("");  // The others wait for it, also after an error.
  TRIREME_RETURN_IF_ERROR(agree_on_setup(group, "nccl/connected", connected, deadline));
  return std::make_unique<NcclEngine>(group, *device, std::move(nccl));
}

}  // namespace trireme::internal
