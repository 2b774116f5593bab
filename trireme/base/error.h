#pragma once

#include <stdexcept>
#include <string>

namespace trireme {

// The kind of an error. Programs decide by this code only; the text of a message may change. The
// first seventeen codes have the names and numbers of gRPC's canonical status codes. The codes from
// 100 on are Trireme's own and more specific.
enum class ErrorCode {
  kOk = 0,                  // There is no error.
  kCancelled = 1,           // The program cancelled the operation.
  kUnknown = 2,             // The cause has no other code.
  kInvalidArgument = 3,     // An argument is not valid, whatever the state of the cluster.
  kDeadlineExceeded = 4,    // The operation did not complete in time.
  kNotFound = 5,            // There is no object with this name.
  kAlreadyExists = 6,       // There is another object with this name.
  kPermissionDenied = 7,    // The caller is known, but may not do this.
  kResourceExhausted = 8,   // Memory or another limited resource is used up.
  kFailedPrecondition = 9,  // The operation is not allowed in the current state.
  kAborted = 10,            // Another task or the end of a session stopped the operation.
  kOutOfRange = 11,         // An index or a number is out of its range.
  kUnimplemented = 12,      // The operation is not supported.
  kInternal = 13,           // An invariant does not hold: a bug in Trireme.
  kUnavailable = 14,        // The service cannot be used now. A later attempt may succeed.
  kDataLoss = 15,           // Data is lost or damaged.
  kUnauthenticated = 16,    // The caller did not prove its identity.

  kTaskUnreachable = 100,     // No process answers at the task's address.
  kIncarnationChanged = 101,  // The task was restarted: another process answers at its address.
  kVersionMismatch = 102,     // The peer uses another version of the protocol.
  kEndOfData = 103,           // The iterator has no more elements.
};

// Returns the name of the code, for example "INVALID_ARGUMENT".
const char* error_code_name(ErrorCode code);

// Where an error arose. Each field is empty if it is not known.
struct Origin {
  std::string task;    // For example "/job:ps/task:1".
  std::string object;  // The object on that task, for example "variable 'w'".

  // Compares all fields.
  bool operator==(const Origin&) const = default;
};

// The only exception type that Trireme throws. what() is written for people: it says what failed,
// on which task and object, and what to do about it.
//
//   try {
//     coordinator.join();
//   } catch (const trireme::Error& error) {
//     if (error.code() != trireme::ErrorCode::kTaskUnreachable) throw;
//     std::cerr << error.origin().task << " is not reachable\n";
//   }
class Error : public std::runtime_error {
 public:
  // Makes an error with this code. what() is `message`, with the origin before it if it is known.
  Error(ErrorCode code, std::string message, Origin origin = {});

  // Returns the kind of the error.
  ErrorCode code() const { return code_; }
  // Returns where the error arose.
  const Origin& origin() const { return origin_; }
  // Returns the text without the origin; what() puts the origin before it.
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_;
  std::string message_;
  Origin origin_;
};

}  // namespace trireme
