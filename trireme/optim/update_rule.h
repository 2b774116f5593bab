#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

// How an optimizer changes a variable, apart from where variables live: the same rules run in
// captured steps and on parameter servers. All state is tensors; step and rate are tensors too,
// since a number would be a constant of the captured graph.
namespace trireme::internal {

struct Slot {
  std::string name;
  double initial = 0;
};

// One list per slot, each parallel to the parameters.
using SlotTensors = std::vector<std::vector<at::Tensor>>;

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual std::string name() const = 0;
  virtual double lr() const = 0;
  virtual std::vector<Slot> slots() const = 0;
  // Every number that makes the rule, by name: what make_rule() makes the same rule from.
  virtual std::map<std::string, double> options() const = 0;

  // `step` counts this update, from 1 on. Gradients have their parameters' strides.
  virtual void update(const std::vector<at::Tensor>& parameters,
                      const std::vector<at::Tensor>& gradients, const SlotTensors& slots,
                      const at::Tensor& step, const at::Tensor& lr) const = 0;
  // A sparse gradient changes the rows that it has entries for, and their state, and nothing else.
  virtual void update_rows(const at::Tensor& parameter, const at::Tensor& gradient,
                           const std::vector<at::Tensor>& slots, const at::Tensor& step,
                           const at::Tensor& lr) const = 0;
};

// The rule of that name. Options that are not given have their defaults. Throws Error for a name or
// an option that there is not.
std::shared_ptr<const UpdateRule> make_rule(const std::string& name,
                                            const std::map<std::string, double>& options);

}  // namespace trireme::internal
