#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

class StoredVariable;

// Learns of changes of variables before they are made.
class ChangeWatcher {
 public:
  virtual ~ChangeWatcher() = default;
  // Called before the rows `ids` of a variable and of its optimizer's state change, or all of both
  // if `ids` is undefined. The caller holds the variable's lock for writing. May block for a
  // limited time.
  virtual void before_change(const StoredVariable& variable, const at::Tensor& ids) = 0;
};

}  // namespace trireme
