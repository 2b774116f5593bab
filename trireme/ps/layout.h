#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/ps/partitioner.h"

namespace trireme {

// The properties of a variable that decide where it is placed.
struct VariableSpec {
  std::string name;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::kFloat;
  // Server that must hold the whole variable; nullopt to let the placer choose.
  std::optional<int> server = {};
};

// Says which server holds which rows of a variable. Plain data that can be sent to other tasks; a
// client that has the layout can open the variable.
struct VariableLayout {
  struct Shard {
    std::string name;  // name on the server: "w", or "w/part_2" if the variable has several shards
    int server = 0;    // index of the ps task
    RowRange rows;     // rows of the variable that the shard holds
  };

  std::string name;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<Shard> shards;

  std::vector<int64_t> shard_sizes(const Shard& shard) const;
  int64_t shard_bytes(const Shard& shard) const;
  // Returns the origin of errors that concern this variable.
  Origin object() const { return {"", "variable '" + name + "'"}; }
};

// Cuts variables into shards, as the partitioner says, and assigns the shards to servers. The
// result is deterministic: programs that place the same variables in the same order get the same
// layouts. Not thread-safe.
class ShardPlacer {
 public:
  // Without a partitioner variables stay whole. Throws Error if there are no servers.
  ShardPlacer(int servers, Placement placement, Partitioner partitioner = nullptr);

  // Returns the layouts in the order of the variables. Takes into account what was placed before.
  // Throws Error if the partitioner returns less than 1.
  std::vector<VariableLayout> place(const std::vector<VariableSpec>& variables);
  // Returns the bytes placed on each server so far.
  const std::vector<int64_t>& bytes() const { return bytes_; }

 private:
  // Cuts a variable into shards that have no server yet.
  VariableLayout cut(const VariableSpec& variable) const;

  Placement placement_;
  Partitioner partitioner_;
  std::vector<int64_t> bytes_;
  int next_ = 0;  // next server of round-robin placement
};

}  // namespace trireme
