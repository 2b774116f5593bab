#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace trireme::internal {

// Tracks which values of a graph may share memory, by what the operators do, whose memory that is
// and whether it is written. Nothing that the graph says of its values counts: locks and copies
// depend on it, and a graph may come from anybody. Used by one thread.
class ValueMemory {
 public:
  explicit ValueMemory(size_t values);

  // The two values may share memory. All joins come before the first mark.
  void join(uint32_t a, uint32_t b) { parent_[storage_of(a)] = storage_of(b); }
  // Returns a number that all values which may share memory have in common.
  uint32_t storage_of(uint32_t value);

  void mark_written(int64_t value);
  // Returns true if somebody writes to memory that the value may share; false for value -1.
  bool is_written(int64_t value);

  // Marks the memory as that of a variable. Returns the variable that has it: another one if it was
  // marked before.
  int64_t mark_variable(int64_t value, int64_t variable);
  bool has_variables() const { return !variables_.empty(); }
  // Returns the variable whose memory a value may share; -1 for none.
  int64_t variable_of(int64_t value);

 private:
  std::vector<uint32_t> parent_;                     // disjoint sets, each a tree with one root
  std::unordered_set<uint32_t> written_;             // roots
  std::unordered_map<uint32_t, int64_t> variables_;  // root to variable
};

}  // namespace trireme::internal
