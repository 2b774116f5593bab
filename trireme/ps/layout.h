#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/ps/partitioner.h"

namespace trireme {

// A variable that servers are to hold, as far as its place depends on it.
struct VariableSpec {
  std::string name;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::kFloat;
};

// Which rows of a variable lie where. Plain data: whoever has it can use the variable.
struct VariableLayout {
  struct Shard {
    std::string name;  // "w", or "w/part_2" if there are several
    int server = 0;    // index of the ps task
    RowRange rows;     // of all if there is one shard
  };

  std::string name;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<Shard> shards;

  std::vector<int64_t> shard_sizes(const Shard& shard) const;
  int64_t shard_bytes(const Shard& shard) const;
  // For errors.
  Origin object() const { return {"", "variable '" + name + "'"}; }
};

// Cuts variables by the partitioner (none: whole) and places their shards on servers.
// Deterministic: programs that place the same variables in the same order agree. Not thread-safe.
class ShardPlacer {
 public:
  ShardPlacer(int servers, Placement placement, Partitioner partitioner = nullptr);

  std::vector<VariableLayout> place(const std::vector<VariableSpec>& variables);
  const std::vector<int64_t>& bytes() const { return bytes_; }  // of each server

 private:
  VariableLayout cut(const VariableSpec& variable) const;

  Placement placement_;
  Partitioner partitioner_;
  std::vector<int64_t> bytes_;
  int next_ = 0;  // of round-robin
};

}  // namespace trireme
