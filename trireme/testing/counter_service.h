#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "trireme/rpc/channel.h"
#include "trireme/rpc/service.h"

namespace trireme {

// Counts, and may not count anything twice: what tests of lost and repeated calls use.
class CounterService final : public Service {
 public:
  static constexpr char kAdd[] = "/trireme.testing.Counter/Add";    // done once; an amount
  static constexpr char kRead[] = "/trireme.testing.Counter/Read";  // harmless to repeat

  std::vector<Method> methods() override;
  int64_t value() const { return value_; }

  // Bodies of both: a number in decimal. Add answers with the sum that it made.
  static Message number(int64_t value) { return {std::to_string(value), {}}; }
  static int64_t number(const Message& message) { return std::stoll(message.body); }

 private:
  std::atomic<int64_t> value_ = 0;
};

}  // namespace trireme
