#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::internal {

// Kinds of lists that a feature of a tf.Example can have, by the numbers of their fields.
enum class TfListKind : uint32_t { kNone = 0, kBytes = 1, kFloat = 2, kInt64 = 3 };

// Finds the list of a serialized feature, and its kind, which is kNone if there is none. `joined`
// keeps the bytes of a list that comes in several parts. Returns false if the bytes are not valid.
bool find_tf_list(std::string_view feature, std::string* joined, TfListKind* kind,
                  std::string_view* list);

// Finds the packed values of a list of numbers. `joined` keeps the bytes of values that are not
// packed or come in several parts. Returns false if the bytes are not valid.
bool find_tf_run(std::string_view list, TfListKind kind, std::string* joined,
                 std::string_view* run);

// Returns the number of packed values, or -1 if they are not valid.
int64_t count_tf_numbers(std::string_view run, TfListKind kind);

// Writes packed values to `out`, which has room for as many values of the dtype as
// count_tf_numbers() has returned. Sets `misfit` to a value that the dtype does not have, if there
// is one. Returns false if the values are not valid.
bool put_tf_numbers(std::string_view run, c10::ScalarType dtype, void* out,
                    std::optional<int64_t>* misfit);

// Puts the seven low bits of each byte of a varint of at most eight bytes side by side.
inline uint64_t pack_tf_varint(uint64_t word) {
  word = (word & 0x7f007f007f007f00) >> 1 | (word & 0x007f007f007f007f);
  word = (word & 0x3fff00003fff0000) >> 2 | (word & 0x00003fff00003fff);
  return (word & 0x0fffffff00000000) >> 4 | (word & 0x000000000fffffff);
}

// Calls the function with a value of the type that a column's dtype stands for.
template <typename Function>
auto with_tf_type(c10::ScalarType dtype, const Function& function) {
  switch (dtype) {
    case at::kLong:
      return function(int64_t{});
    case at::kInt:
      return function(int32_t{});
    case at::kByte:
      return function(uint8_t{});
    case at::kBool:
      return function(bool{});
    case at::kDouble:
      return function(double{});
    default:
      return function(float{});
  }
}

}  // namespace trireme::internal
