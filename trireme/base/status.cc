#include "trireme/base/status.h"

#include <array>
#include <optional>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace trireme {
namespace {

// An absl::Status can hold only the canonical codes. Trireme's own code and the origin are attached
// to it as a payload, whose text is also what travels over the wire: "CODE\nTASK\nOBJECT".
constexpr char kDetailsUrl[] = "trireme/error";
constexpr char kSeparator = '\n';

struct Details {
  ErrorCode code;
  Origin origin;
};

absl::StatusCode canonical(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTaskUnreachable:
      return absl::StatusCode::kUnavailable;
    case ErrorCode::kIncarnationChanged:
      return absl::StatusCode::kAborted;
    case ErrorCode::kVersionMismatch:
      return absl::StatusCode::kFailedPrecondition;
    case ErrorCode::kEndOfData:
      return absl::StatusCode::kOutOfRange;
    default:
      return static_cast<absl::StatusCode>(code);
  }
}

std::string encode(const Details& details) {
  const std::string separator(1, kSeparator);
  return absl::StrCat(static_cast<int>(details.code), separator, details.origin.task, separator,
                      details.origin.object);
}

std::optional<Details> decode(const std::string& bytes) {
  std::vector<std::string> parts = absl::StrSplit(bytes, absl::MaxSplits(kSeparator, 2));
  int code = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &code)) return std::nullopt;
  return Details{static_cast<ErrorCode>(code), {std::move(parts[1]), std::move(parts[2])}};
}

Details details_of(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kDetailsUrl)) {
    if (std::optional<Details> details = decode(std::string(*payload))) return *details;
  }
  return {static_cast<ErrorCode>(status.code()), {}};
}

void attach(absl::Status& status, const Details& details) {
  status.SetPayload(kDetailsUrl, absl::Cord(encode(details)));
}

}  // namespace

absl::Status make_status(ErrorCode code, std::string message, Origin origin) {
  absl::Status status(canonical(code), message);
  attach(status, {code, std::move(origin)});
  return status;
}

ErrorCode error_code(const absl::Status& status) {
  return details_of(status).code;
}

Origin error_origin(const absl::Status& status) {
  return details_of(status).origin;
}

absl::Status with_origin(absl::Status status, const Origin& origin) {
  if (status.ok()) return status;
  Details details = details_of(status);
  if (details.origin.task.empty()) details.origin.task = origin.task;
  if (details.origin.object.empty()) details.origin.object = origin.object;
  attach(status, details);
  return status;
}

std::string encode_error_details(const absl::Status& status) {
  return encode(details_of(status));
}

absl::Status status_from_wire(absl::StatusCode code, std::string message,
                              const std::string& details) {
  absl::Status status(code, message);
  std::optional<Details> decoded = decode(details);
  // Accept a code of Trireme's own only if it belongs to the canonical code that the peer sent.
  if (decoded && canonical(decoded->code) == code) attach(status, *decoded);
  return status;
}

Error to_error(const absl::Status& status) {
  Details details = details_of(status);
  return Error(details.code, std::string(status.message()), details.origin);
}

absl::Status to_status(const Error& error) {
  return make_status(error.code(), error.message(), error.origin());
}

std::string describe(const absl::Status& status) {
  return status.ok() ? "OK" : to_error(status).what();
}

}  // namespace trireme
