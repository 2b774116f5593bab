#pragma once

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/error.h"

// Inside Trireme errors are absl::Status; at the user's API they become Error. Both carry the same
// code and origin, and turning one into the other and back loses nothing.
namespace trireme {

[[nodiscard]] absl::Status make_status(ErrorCode code, std::string message, Origin origin = {});
[[nodiscard]] inline absl::Status invalid_argument(std::string message) {
  return make_status(ErrorCode::kInvalidArgument, std::move(message));
}

// The fine code where there is one, else the canonical one.
ErrorCode error_code(const absl::Status& status);
Origin error_origin(const absl::Status& status);

// Fills what the origin does not say yet. The first to name a task or an object wins, since it
// stood nearest to the fault.
[[nodiscard]] absl::Status with_origin(absl::Status status, const Origin& origin);

// Everything but the message, as bytes that can travel (and back). Unreadable bytes are ignored.
std::string encode_error_details(const absl::Status& status);
[[nodiscard]] absl::Status status_from_wire(absl::StatusCode code, std::string message,
                                            const std::string& details);

Error to_error(const absl::Status& status);
[[nodiscard]] absl::Status to_status(const Error& error);
// What what() of the exception would say.
std::string describe(const absl::Status& status);

inline void throw_if_error(const absl::Status& status) {
  if (!status.ok()) throw to_error(status);
}

template <typename T>
T value_or_throw(absl::StatusOr<T> result) {
  if (!result.ok()) throw to_error(result.status());
  return *std::move(result);
}

// Calls a function of the throwing API from code that speaks absl::Status. Any other exception
// becomes INTERNAL with its text: nothing may escape into a thread that serves others.
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
