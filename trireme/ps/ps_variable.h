#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/ps/layout.h"
#include "trireme/ps/push_id.h"
#include "trireme/ps/update.h"

namespace trireme {

// A variable on the servers, as a client refers to it: its layout and the handles of its shards.
// Immutable. Copies share one state.
class PsVariable {
 public:
  // `handles` has the handle of each shard at its server, in the order of the layout's shards.
  PsVariable(VariableLayout layout, std::vector<uint64_t> handles)
      : state_(std::make_shared<const State>(State{std::move(layout), std::move(handles)})) {}

  const VariableLayout& layout() const { return state_->layout; }
  const std::string& name() const { return layout().name; }
  // Returns the handle of a shard, by its index in the layout.
  uint64_t handle(size_t shard) const { return state_->handles[shard]; }

 private:
  struct State {
    VariableLayout layout;
    std::vector<uint64_t> handles;
  };

  std::shared_ptr<const State> state_;
};

// Versions of the shards of one variable, in the order of its layout. A shard's version rises with
// every change of it, so equal versions mean equal contents (docs/decisions/versions.md). nullopt
// for a shard that took no part, since no row of it was asked for.
using ShardVersions = std::vector<std::optional<uint64_t>>;

// A read of one variable, whole or by rows.
struct PsPull {
  PsVariable variable;
  at::Tensor rows = {};  // ids of the rows to read, in any order; undefined for all rows
};

// A change of one variable, whole or by rows.
struct PsPush {
  PsVariable variable;
  Update::Kind kind = Update::Kind::kAdd;
  at::Tensor rows = {};  // ids of the rows to change; undefined for all rows
  at::Tensor values;     // new values, increments or gradients; a sparse tensor carries its row ids
};

struct PushOptions {
  // Identity of the push. A server applies a push with a given identity once.
  PushId id;
  // All sequences of the writer below the watermark are decided: they were acknowledged or given
  // up. Servers forget their records and reject late copies of them.
  uint64_t watermark = 0;
  // Learning rate for the gradients in the push; nullopt for that of the optimizer's options. A
  // rate counts for this push only.
  std::optional<double> lr = std::nullopt;
};

}  // namespace trireme
