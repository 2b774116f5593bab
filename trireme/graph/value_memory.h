#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace trireme::internal {

// Tracks which values of a graph may share memory, which variable that memory belongs to, and
// whether some node writes to it. The compiler derives this from the operators alone: locks and
// copies depend on it, and a graph from an untrusted peer could state it wrongly. Not thread-safe.
//
// A disjoint-set forest over the values. Marks are kept for the root of a set, so all joins must
// come before the first mark.
class ValueMemory {
 public:
  explicit ValueMemory(size_t values);

  // Records that the two values may share memory.
  void join(uint32_t a, uint32_t b) { parent_[storage_of(a)] = storage_of(b); }
  // Returns a number that is the same for all values that may share memory with this one.
  uint32_t storage_of(uint32_t value);

  // Records that some node writes to the value. Ignores value -1.
  void mark_written(int64_t value);
  // Returns true if some node writes to memory that the value may share; false for value -1.
  bool is_written(int64_t value);

  // Records that the memory belongs to a variable, unless it belongs to another one already.
  // Returns the variable that it belongs to.
  int64_t mark_variable(int64_t value, int64_t variable);
  // Returns true once some memory belongs to a variable.
  bool has_variables() const { return !variables_.empty(); }
  // Returns the variable whose memory a value may share; -1 for none.
  int64_t variable_of(int64_t value);

 private:
  std::vector<uint32_t> parent_;                     // parent of each value; a root is its own
  std::unordered_set<uint32_t> written_;             // roots of the sets that are written
  std::unordered_map<uint32_t, int64_t> variables_;  // root of a set to its variable
};

}  // namespace trireme::internal
