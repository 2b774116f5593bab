#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/capture/aggregation.h"

namespace trireme {
namespace internal {
struct VariableRecord;
}

// Options of a Variable.
struct VariableOptions {
  // True if optimizers train it. Gradients flow to it if its dtype is floating point or complex.
  bool trainable = true;
  // How the values that several replicas (strategy.run()) assign to it are combined.
  Aggregation aggregation = Aggregation::kNone;
};

// A named tensor that keeps its contents from step to step. Captured functions read and write it
// where it lives; any other tensor that they use from outside is a constant of the graph.
//
//   tr::Variable calls("calls", torch::zeros({}, torch::kLong));
//   auto count = tr::function("count", [=](const torch::Tensor& x) {
//     calls.assign_add(torch::ones({}, torch::kLong));
//     return x * calls.read();
//   });
//
// A variable lives in the memory of the program, with two exceptions. Made in the scope of
// parameter servers (strategy.scope()), it lives on them. Once a step of a session has used it, it
// lives on a task of the session, until the session is closed: read() and assign() go there, and
// code that uses the memory in the program gets an error. That task is the one that a DeviceScope
// named when the variable was made, or else the session's master.
//
// A handle: copies refer to the same variable. A variable in the program's memory is not
// synchronised: a step that writes it must not run at the same time as another that uses it.
class Variable {
 public:
  // Makes a variable with a copy of `initial`. If the name is taken it gets a suffix: "w_1", "w_2".
  Variable(std::string name, const at::Tensor& initial, VariableOptions options = {});

  // Returns its name, which is unique in the program.
  const std::string& name() const;
  // Returns true if optimizers train it.
  bool trainable() const;
  // Returns the device named by the scopes in which it was made: "/job:ps/task:0". An empty string
  // means the program, and for functions that a session runs, the session's master task. Returns
  // the device of the first shard of a variable with several.
  std::string device() const;
  // Returns the devices of its shards, in order; only device() if it has no shards.
  std::vector<std::string> shards() const;
  // Returns the contents. In the program's memory that is the variable's own tensor, not a copy,
  // and gradients flow through it to the variable. The contents of a variable on parameter servers
  // or on a session's task are fetched from there; writing to the fetched copy does not change the
  // variable. While a function is being captured, the result stands for the variable wherever it
  // lives.
  //
  // Outside of a captured function, a copy on the device of the scopes around it is returned if
  // they name a local device and the contents are not there. Gradients flow through it, too.
  // Writing to it does not change the variable.
  //
  // Throws Error for a variable that a DeviceScope placed on a task and that no session has used
  // yet, and if several sessions hold different copies of it.
  at::Tensor read() const;
  // Does the same as read(), so that a variable can be an argument of LibTorch's functions and take
  // part in arithmetic: torch::add(v, w), 2 * v + x.
  operator at::Tensor() const { return read(); }

  // Replaces the contents where the variable lives, under the rules of read(). Throws Error unless
  // `value` has the variable's shape, which never changes. In one of several replicas it takes
  // effect once, after the last replica, with the values combined by the variable's aggregation.
  void assign(const at::Tensor& value) const;
  // Adds `delta` to the contents, under the rules of assign().
  void assign_add(const at::Tensor& delta) const;
  // Subtracts `delta` from the contents, under the rules of assign().
  void assign_sub(const at::Tensor& delta) const;

 private:
  friend struct internal::Access<Variable>;
  explicit Variable(std::shared_ptr<internal::VariableRecord> record);

  std::shared_ptr<internal::VariableRecord> record_;
};

// Arithmetic on the contents of variables, under the rules of read(). With a tensor on one side,
// LibTorch's own operators apply.

// Returns the negated contents.
at::Tensor operator-(const Variable& a);
// Returns the sum.
at::Tensor operator+(const Variable& a, const Variable& b);
// Returns the difference.
at::Tensor operator-(const Variable& a, const Variable& b);
// Returns the product, element by element.
at::Tensor operator*(const Variable& a, const Variable& b);
// Returns the quotient, element by element.
at::Tensor operator/(const Variable& a, const Variable& b);
// Adds a number.
at::Tensor operator+(const Variable& a, const at::Scalar& b);
// Subtracts a number.
at::Tensor operator-(const Variable& a, const at::Scalar& b);
// Multiplies by a number.
at::Tensor operator*(const Variable& a, const at::Scalar& b);
// Divides by a number.
at::Tensor operator/(const Variable& a, const at::Scalar& b);
// Adds to a number.
at::Tensor operator+(const at::Scalar& a, const Variable& b);
// Subtracts from a number.
at::Tensor operator-(const at::Scalar& a, const Variable& b);
// Multiplies a number.
at::Tensor operator*(const at::Scalar& a, const Variable& b);
// Divides a number.
at::Tensor operator/(const at::Scalar& a, const Variable& b);

template <>
struct internal::Access<Variable> {
  static Variable make(std::shared_ptr<VariableRecord> record) {
    return Variable(std::move(record));
  }
  static const std::shared_ptr<VariableRecord>& record(const Variable& variable) {
    return variable.record_;
  }
};

}  // namespace trireme
