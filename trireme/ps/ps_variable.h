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

// A variable on the servers, as their clients know it. Immutable; copies share one state.
class PsVariable {
 public:
  // `handles` holds the handle of each shard at its server, in the order of the layout's shards.
  PsVariable(VariableLayout layout, std::vector<uint64_t> handles)
      : state_(std::make_shared<const State>(State{std::move(layout), std::move(handles)})) {}

  const VariableLayout& layout() const { return state_->layout; }
  const std::string& name() const { return layout().name; }
  uint64_t handle(size_t shard) const { return state_->handles[shard]; }

 private:
  struct State {
    VariableLayout layout;
    std::vector<uint64_t> handles;
  };

  std::shared_ptr<const State> state_;
};

// A read of one variable.
struct PsPull {
  PsVariable variable;
  at::Tensor rows = {};  // ids of the rows that are wanted, in any order; undefined: all
};

// A change of one variable.
struct PsPush {
  PsVariable variable;
  Update::Kind kind = Update::Kind::kAdd;
  at::Tensor rows = {};  // ids; undefined: all
  at::Tensor values;     // or a sparse tensor, which brings its rows
};

struct PushOptions {
  PushId id;
  // All sequences of the writer below are decided: servers may forget them.
  uint64_t watermark = 0;
  std::optional<double> lr = std::nullopt;  // for gradients; none: the optimizer's own
};

}  // namespace trireme
