#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/graph/graph.pb.h"

// An operator's arguments between the three forms they take: IValues on LibTorch's stack, typed
// fields of the protobuf, and the plan from which a replay fills the stack.
namespace trireme::internal {

struct ArgumentPlan {
  enum class Kind { kConstant, kValue, kValues, kOptionalValues, kGenerator };
  Kind kind = Kind::kConstant;
  bool last_use = false;  // of a kValue: the stack takes the table's reference
  bool required = false;  // of a kValue: an undefined tensor is an error
  uint32_t value = 0;
  c10::IValue constant;
  std::vector<int64_t> values;  // -1 for none
};

// Tells the number of the value that stands for a tensor, -1 for an undefined one. May throw.
using ValueOf = std::function<int64_t(const at::Tensor&)>;

// Throws Error on what a graph cannot hold: storages, streams, symbolic sizes.
void encode_argument(const c10::IValue& argument, const ValueOf& value_of, proto::Argument* out);

// Checks an argument against the type that the operator's schema asks for.
absl::StatusOr<ArgumentPlan> decode_argument(const proto::Argument& argument,
                                             const c10::Argument& schema);

// The argument as people read it: "%7", "[2, 3]", "0.5".
std::string format_argument(const proto::Argument& argument);

}  // namespace trireme::internal
