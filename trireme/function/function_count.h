#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace trireme::internal {

// Counts the steps of one function, from which the random numbers of its steps follow. All counts
// of the process can be read and set by name, for checkpoints. Thread-safe.
class FunctionCount {
 public:
  // Begins at 0, or at the count that restore_function_counts() has left for this name. The name
  // gets a suffix ("step_1") while another function has it.
  explicit FunctionCount(const std::string& name);
  ~FunctionCount();

  FunctionCount(const FunctionCount&) = delete;
  FunctionCount& operator=(const FunctionCount&) = delete;

  // Returns the number of the next step, and counts it.
  uint64_t take() { return next_++; }
  // Returns the number of the next step.
  uint64_t next() const { return next_; }
  void set(uint64_t next) { next_ = next; }

 private:
  std::string name_;
  std::atomic<uint64_t> next_ = 0;
};

// Returns the counts of all functions that exist.
std::map<std::string, uint64_t> function_counts();
// Sets the counts of the functions with these names. A function that does not exist yet begins at
// its count when it is made. Counts that an earlier call left for such functions are dropped.
void restore_function_counts(const std::map<std::string, uint64_t>& counts);

}  // namespace trireme::internal
