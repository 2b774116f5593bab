#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

// Calls of operators as lines of text, so that a corpus of them can be read, compared and edited:
//
//   aten::embedding f32[20,4] i64[3]=0,1,19 -1 false false
//
// The operator's full name is followed by its arguments in the order of the schema:
//   f32[2,3]         a tensor; /1,2 adds strides; =1,2 gives the contents, ~0~5 their range
//   coo[4]<I|V>      a sparse tensor of an index tensor and a value tensor
//   {A;B;-}          a list of tensors; (1,2) a list of numbers; - is none or an undefined tensor
//   3  0.5  true  1+2i  'text'  cpu    numbers, booleans, strings and devices; the generator is -
namespace trireme::fuzz {

using Arguments = std::vector<c10::IValue>;

struct Call {
  c10::OperatorHandle op;
  std::vector<std::string> tokens;

  // Makes the arguments. Contents that the line leaves open follow from `seed`.
  Arguments make(uint64_t seed) const;
};

// Parses one line. Throws std::runtime_error that names the line.
Call parse_call(const std::string& line);

// Parses all lines except empty ones and those that begin with '#'.
std::vector<Call> read_calls(std::istream& in);

// Formats a call as a line. Returns an empty string if the format cannot express an argument.
std::string format_call(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Returns the name with its overload, such as "aten::add.Tensor".
std::string full_name(const c10::OperatorHandle& op);

}  // namespace trireme::fuzz
