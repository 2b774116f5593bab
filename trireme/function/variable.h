#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/aggregation.h"

namespace trireme {
namespace internal {
struct VariableRecord;
}

struct VariableOptions {
  bool trainable = true;  // gradients flow to it, if its dtype allows
  Aggregation aggregation = Aggregation::kNone;
};

// A named tensor that outlives steps. Captured functions read and write it where it is; any other
// tensor that a captured function uses is a constant of its graph. A handle: copies mean the same
// variable. It lives in the program's memory, unless it is made in a DeviceScope that names a task:
// then there, once a session uses it; or in the scope of parameter servers: then there. One in the
// program is not synchronised: a step that writes it and another that uses it must not run at once.
class Variable {
 public:
  // A name that is taken gets a suffix: "w", "w_1", "w_2".
  Variable(std::string name, const at::Tensor& initial, VariableOptions options = {});
  explicit Variable(std::shared_ptr<internal::VariableRecord> record);

  const std::string& name() const;
  bool trainable() const;
  // Where it lives, as far as the scopes that it was made in name it: "/job:ps/task:0"; empty: in
  // the program, and on a session's master task for the functions that it runs. Of a sharded one,
  // where its first shard lives.
  std::string device() const;
  // The devices of its shards, in order; of one that is whole, its device.
  std::vector<std::string> shards() const;
  // The contents, not a copy of them; gradients flow through it to the variable. One on parameter
  // servers is fetched from there, unless a function is being captured.
  at::Tensor read() const;
  operator at::Tensor() const { return read(); }

  // Each checks that shapes agree: a variable keeps its shape for life. In one of several replicas
  // it takes effect once, after the last of them, by the variable's aggregation.
  void assign(const at::Tensor& value) const;
  void assign_add(const at::Tensor& delta) const;
  void assign_sub(const at::Tensor& delta) const;

  const std::shared_ptr<internal::VariableRecord>& record() const { return record_; }

 private:
  std::shared_ptr<internal::VariableRecord> record_;
};

}  // namespace trireme
