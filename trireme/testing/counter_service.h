#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "trireme/rpc/channel.h"
#include "trireme/rpc/service.h"

namespace trireme {

// A counter for tests of lost and repeated calls: each Add must be counted exactly once.
// Thread-safe.
class CounterService final : public Service {
 public:
  // Adds an amount, exactly once, and answers with the new value.
  static constexpr char kAdd[] = "/trireme.testing.Counter/Add";
  // Answers with the value. May be repeated without harm.
  static constexpr char kRead[] = "/trireme.testing.Counter/Read";

  std::vector<Method> methods() override;
  int64_t value() const { return value_; }

  // Encode and decode the bodies of both methods, which are decimal numbers.
  static Message number(int64_t value) { return {std::to_string(value), {}}; }
  static int64_t number(const Message& message) { return std::stoll(message.body); }

 private:
  std::atomic<int64_t> value_ = 0;
};

}  // namespace trireme
