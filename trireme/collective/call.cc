#include "trireme/collective/call.h"

#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <string_view>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

const char* kind_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown call";
}

const char* reduction_name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
  }
  return "unknown reduction";
}

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

}  // namespace

std::string describe_call(const CollectiveCall& call) {
  if (call.step_of != nullptr) return describe_call(*call.step_of);
  std::string text = absl::StrCat(kind_name(call.kind), "(");
  if (reduces(call.kind)) absl::StrAppend(&text, reduction_name(call.reduction), ", ");
  if (call.kind == CollectiveKind::kBroadcast) {
    absl::StrAppend(&text, "from rank ", call.root, ", ");
  }
  if (call.input.defined()) {
    absl::StrAppend(&text, dtype_name(call.input.scalar_type()), format_shape(call.input.sizes()),
                    ", ");
  }
  return absl::StrCat(text, "tag '", call.tag, "')");
}

uint64_t fingerprint(const CollectiveCall& call) {
  // FNV-1a. Everything that must agree is in the description.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : describe_call(call)) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

absl::Status mismatch_error(uint64_t sequence, const std::string& our_name, const std::string& ours,
                            const std::string& their_name, const std::string& theirs) {
  return make_status(
      ErrorCode::kFailedPrecondition,
      absl::StrCat("the ranks of the group do not make the same calls: call ", sequence, " of ",
                   our_name, " is ", ours, ", but call ", sequence, " of ", their_name, " is ",
                   theirs,
                   "; all ranks must make the same collective calls in the same order, with the "
                   "same tag, shape, dtype and operation"));
}

void make_alone(const CollectiveCall& call) {
  if (!call.output.defined() || call.output.is_same(call.input)) return;
  call.output.view(-1).copy_(call.input.view(-1));
}

void combine(Reduction reduction, const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMean:
      at::add_out(out, a, b);
      return;
    case Reduction::kMin:
      at::minimum_out(out, a, b);
      return;
    case Reduction::kMax:
      at::maximum_out(out, a, b);
      return;
  }
}

void finish_mean(Reduction reduction, at::Tensor sum, int ranks) {
  if (reduction == Reduction::kMean) sum.div_(ranks);
}

}  // namespace trireme::internal
