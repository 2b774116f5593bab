#pragma once

#include <stdexcept>
#include <string>

namespace trireme {

// What went wrong, in the words a program may decide on. The first seventeen have the numbers of
// the canonical status codes; those from 100 on are our own and finer. Text is for people only.
enum class ErrorCode {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,

  kTaskUnreachable = 100,     // nobody answers at the task's address
  kIncarnationChanged = 101,  // somebody answers, but not the process that was meant
  kVersionMismatch = 102,     // the peer speaks another version of the protocol
  kEndOfData = 103,           // an iterator has no more elements
};

// The name as people write it, for example "INVALID_ARGUMENT".
const char* error_code_name(ErrorCode code);

// Where an error arose: the task, as "/job:ps/task:1", and the object on it, as "variable 'w'".
// Either may be empty when it is not known.
struct Origin {
  std::string task;
  std::string object;

  bool operator==(const Origin&) const = default;
};

// The one exception that Trireme throws. `what()` is written for people: what failed, on which
// task and object, and what to do about it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message, Origin origin = {});

  ErrorCode code() const { return code_; }
  const Origin& origin() const { return origin_; }
  // The text without the origin, which what() puts before it.
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_;
  std::string message_;
  Origin origin_;
};

}  // namespace trireme
