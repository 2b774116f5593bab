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

// Converts an operator's arguments between their three forms: IValues on LibTorch's stack (in a
// capture), typed fields of the protobuf (in a graph), and the ArgumentPlan from which a replay
// fills the stack again.
namespace trireme::internal {

// Describes how a run obtains one argument of an operator.
struct ArgumentPlan {
  enum class Kind {
    kConstant,        // `constant`, for anything that is not a tensor, and for undefined tensors
    kValue,           // the tensor with number `value`
    kValues,          // a list of the tensors in `values`
    kOptionalValues,  // likewise, where -1 in `values` stands for none
    kGenerator        // the step's generator
  };
  Kind kind = Kind::kConstant;
  bool last_use = false;  // true for a kValue that is moved out of the table of values
  bool required = false;  // true for a kValue that must not be an undefined tensor
  uint32_t value = 0;
  c10::IValue constant;
  std::vector<int64_t> values;
};

// Returns the number of the value that stands for a tensor, or -1 for an undefined one. May throw.
using ValueOf = std::function<int64_t(const at::Tensor&)>;

// Writes an argument into the protobuf. Throws Error if a graph cannot hold it: a storage, a
// stream, a symbolic size.
void encode_argument(const c10::IValue& argument, const ValueOf& value_of, proto::Argument* out);

// Returns the plan of an argument, or an error if it does not have the type that the operator's
// schema declares. Does not check that the values it names exist.
absl::StatusOr<ArgumentPlan> decode_argument(const proto::Argument& argument,
                                             const c10::Argument& schema);

// Formats an argument for people: "%7" for a value, "[2, 3]", "0.5".
std::string format_argument(const proto::Argument& argument);

}  // namespace trireme::internal
