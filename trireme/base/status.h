#pragma once

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/error.h"

// Inside Trireme errors are absl::Status; the public API throws them as Error. Both carry the same
// code and origin, and the conversion loses nothing in either direction.
namespace trireme {

[[nodiscard]] absl::Status make_status(ErrorCode code, std::string message, Origin origin = {});
[[nodiscard]] inline absl::Status invalid_argument(std::string message) {
  return make_status(ErrorCode::kInvalidArgument, std::move(message));
}

// Returns Trireme's own code if the status carries one, otherwise the canonical code.
ErrorCode error_code(const absl::Status& status);
// Returns where the error arose; empty fields are unknown.
Origin error_origin(const absl::Status& status);

// Fills the fields of the status's origin that are still empty. Fields that are set stay, because
// the code that set them first was nearest to the fault. Returns an OK status unchanged.
[[nodiscard]] absl::Status with_origin(absl::Status status, const Origin& origin);

// Encode code and origin as bytes for the wire, and restore a status from them. Bytes that cannot
// be decoded are ignored, and so is a code that does not belong to the canonical `code`.
std::string encode_error_details(const absl::Status& status);
[[nodiscard]] absl::Status status_from_wire(absl::StatusCode code, std::string message,
                                            const std::string& details);

Error to_error(const absl::Status& status);
[[nodiscard]] absl::Status to_status(const Error& error);
// Returns the text that what() of the exception would have.
std::string describe(const absl::Status& status);

inline void throw_if_error(const absl::Status& status) {
  if (!status.ok()) throw to_error(status);
}

template <typename T>
T value_or_throw(absl::StatusOr<T> result) {
  if (!result.ok()) throw to_error(result.status());
  return *std::move(result);
}

// Calls a function that may throw from code that uses absl::Status. Error keeps its code; any other
// std::exception becomes INTERNAL with its text. No exception may escape into a thread that serves
// other requests.
template <typename F>
auto try_call(F&& function) {
  using T = std::invoke_result_t<F>;
  using Result = std::conditional_t<std::is_void_v<T>, absl::Status,
                                    absl::StatusOr<std::conditional_t<std::is_void_v<T>, int, T>>>;
  try {
    if constexpr (std::is_void_v<T>) {
      std::forward<F>(function)();
      return Result(absl::OkStatus());
    } else {
      return Result(std::forward<F>(function)());
    }
  } catch (const Error& error) {
    return Result(to_status(error));
  } catch (const std::exception& error) {
    return Result(make_status(ErrorCode::kInternal, error.what()));
  }
}

}  // namespace trireme

#define TRIREME_CONCAT_INNER(a, b) a##b
#define TRIREME_CONCAT(a, b) TRIREME_CONCAT_INNER(a, b)

#define TRIREME_RETURN_IF_ERROR(expression)          \
  do {                                               \
    absl::Status trireme_status = (expression);      \
    if (!trireme_status.ok()) return trireme_status; \
  } while (false)

#define TRIREME_ASSIGN_OR_RETURN(lhs, expression) \
  TRIREME_ASSIGN_OR_RETURN_IMPL(TRIREME_CONCAT(trireme_result_, __LINE__), lhs, expression)
#define TRIREME_ASSIGN_OR_RETURN_IMPL(result, lhs, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  lhs = *std::move(result)
