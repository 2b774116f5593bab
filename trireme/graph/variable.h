#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace trireme {
namespace internal {
struct VariableRecord;
}

struct VariableOptions {
  bool trainable = true;  // gradients flow to it, if its dtype allows
};

// A named tensor that outlives steps. Captured functions read and write it where it is; any other
// tensor that a captured function uses is a constant of its graph. A handle: copies mean the same
// variable. Here it lives in the program's memory. Not synchronised: a step that writes it and
// another that uses it must not run at once.
class Variable {
 public:
  // A name that is taken gets a suffix: "w", "w_1", "w_2".
  Variable(std::string name, const at::Tensor& initial, VariableOptions options = {});
  explicit Variable(std::shared_ptr<internal::VariableRecord> record);

  const std::string& name() const;
  bool trainable() const;
  // The contents, not a copy of them; gradients flow through it to the variable.
  const at::Tensor& read() const;
  operator const at::Tensor&() const { return read(); }

  // Each checks that shapes agree: a variable keeps its shape for life.
  void assign(const at::Tensor& value) const;
  void assign_add(const at::Tensor& delta) const;
  void assign_sub(const at::Tensor& delta) const;

  const std::shared_ptr<internal::VariableRecord>& record() const { return record_; }

 private:
  std::shared_ptr<internal::VariableRecord> record_;
};

}  // namespace trireme
