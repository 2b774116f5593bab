#include "trireme/base/error.h"

#include <utility>

namespace trireme {
namespace {

std::string with_origin_in_front(const std::string& message, const Origin& origin) {
  std::string text;
  for (const std::string& part : {origin.task, origin.object}) {
    // A message may already begin with its task or object; do not repeat it.
    if (part.empty() || message.compare(0, part.size(), part) == 0) continue;
    text += part + ": ";
  }
  return text + message;
}

}  // namespace

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "OK";
    case ErrorCode::kCancelled:
      return "CANCELLED";
    case ErrorCode::kUnknown:
      return "UNKNOWN";
    case ErrorCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case ErrorCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case ErrorCode::kNotFound:
      return "NOT_FOUND";
    case ErrorCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case ErrorCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case ErrorCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case ErrorCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case ErrorCode::kAborted:
      return "ABORTED";
    case ErrorCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case ErrorCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case ErrorCode::kInternal:
      return "INTERNAL";
    case ErrorCode::kUnavailable:
      return "UNAVAILABLE";
    case ErrorCode::kDataLoss:
      return "DATA_LOSS";
    case ErrorCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    case ErrorCode::kTaskUnreachable:
      return "TASK_UNREACHABLE";
    case ErrorCode::kIncarnationChanged:
      return "INCARNATION_CHANGED";
    case ErrorCode::kVersionMismatch:
      return "VERSION_MISMATCH";
    case ErrorCode::kEndOfData:
      return "END_OF_DATA";
  }
  return "UNKNOWN";
}

Error::Error(ErrorCode code, std::string message, Origin origin)
    : std::runtime_error(with_origin_in_front(message, origin)),
      code_(code),
      message_(std::move(message)),
      origin_(std::move(origin)) {}

}  // namespace trireme
