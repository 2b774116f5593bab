#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/optim/schedule.h"

// Computes the updates of an optimizer, independent of where variables live: the same rules run in
// captured steps and on parameter servers. All state is in tensors. Step and learning rate are
// tensors too, since a number would be a constant of the captured graph.
namespace trireme::internal {

// A tensor of state that a rule keeps for each parameter, with the parameter's shape.
struct Slot {
  std::string name;
  double initial = 0;  // initial value of all elements
};

// One list for each slot, each parallel to the parameters.
using SlotTensors = std::vector<std::vector<at::Tensor>>;

// The update rule of an optimizer, with its options. Immutable and thread-safe.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Returns the name that make_rule() knows it by.
  virtual std::string name() const = 0;
  // Returns the learning rate of the options.
  virtual const Rate& rate() const = 0;
  // Returns the initial learning rate.
  double lr() const { return rate(); }
  // Returns the state that it needs for each parameter.
  virtual std::vector<Slot> slots() const = 0;
  // Returns all options by name. make_rule() makes an equal rule of them.
  virtual std::map<std::string, double> options() const = 0;

  // Throws Error if it cannot update parameters of this dtype.
  void check_dtype(at::ScalarType dtype) const;
  // Throws Error if it is not defined for sparse gradients. A caller that updates several
  // parameters checks first, so that nothing has changed when one gradient is rejected.
  virtual void check_rows() const = 0;

  // Updates parameters and slots in place with dense gradients, which have the strides of their
  // parameters. `step` is the number of this update, from 1 on.
  virtual void update(const std::vector<at::Tensor>& parameters,
                      const std::vector<at::Tensor>& gradients, const SlotTensors& slots,
                      const at::Tensor& step, const at::Tensor& lr) const = 0;
  // Updates one parameter and its slots in place with a sparse gradient: only the rows that it has
  // entries for, and their state. Throws what check_rows() throws, before anything has changed.
  virtual void update_rows(const at::Tensor& parameter, const at::Tensor& gradient,
                           const std::vector<at::Tensor>& slots, const at::Tensor& step,
                           const at::Tensor& lr) const = 0;
};

// Returns the rule with this name. Options that are not given have their defaults. Throws Error if
// the name or an option is not known.
std::shared_ptr<const UpdateRule> make_rule(const std::string& name,
                                            const std::map<std::string, double>& options);

}  // namespace trireme::internal
