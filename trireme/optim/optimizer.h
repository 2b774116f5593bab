#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trireme/function/module.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace internal {
class UpdateRule;
}

struct MinimizeOptions {
  double clip_norm = 0;  // the largest norm of all gradients together; 0 for any
};

// Changes variables along their gradients. Its state, step count and learning rate are variables,
// made when it is, so that a captured step carries them on. Made without variables it is a recipe
// that is bound to some later. A handle: copies share the state.
//
// In one of several replicas (strategy.run()) gradients are not applied in place: once the last
// replica is done, their sum over the replicas is, and clip_norm is meant for the sum.
class Optimizer {
 public:
  // Backward and update in one. Leaves every `.grad` alone.
  void minimize(const at::Tensor& loss, MinimizeOptions options = {}) const;
  // With gradients of one's own, one for each of variables(); an undefined one changes nothing.
  void apply_gradients(const std::vector<at::Tensor>& gradients) const;
  // For loops that call backward() themselves: zero_grad(), backward(), step().
  void step() const;
  void zero_grad() const;

  // Takes effect in captured steps too, without another capture.
  void set_lr(double lr) const;
  double lr() const;

  // The variables that it trains, and all of its state.
  const std::vector<Variable>& variables() const;
  std::vector<Variable> state() const;

  bool is_bound() const { return bound_ != nullptr; }
  // The same recipe for these variables, with fresh state.
  Optimizer bind(const std::vector<Variable>& variables) const;

  const internal::UpdateRule& rule() const { return *rule_; }

 protected:
  explicit Optimizer(std::shared_ptr<const internal::UpdateRule> rule);
  Optimizer(std::shared_ptr<const internal::UpdateRule> rule,
            const std::vector<Variable>& variables);

 private:
  struct Bound;
  const Bound& bound() const;
  void apply_later(const char* call, std::vector<at::Tensor> gradients,
                   MinimizeOptions options) const;

  std::shared_ptr<const internal::UpdateRule> rule_;
  std::shared_ptr<const Bound> bound_;
};

// Scales gradients so that the norm of all of them together is at most max_norm, and returns what
// it was, all without a number leaving the tensors. Undefined gradients are passed over.
at::Tensor clip_grad_norm(std::vector<at::Tensor>& gradients, double max_norm);
// As above, each gradient by its own norm.
void clip_each_grad_norm(std::vector<at::Tensor>& gradients, double max_norm);
// Every element to -limit ... limit.
void clip_grad_value(std::vector<at::Tensor>& gradients, double limit);

struct SgdOptions {
  double lr = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

struct AdagradOptions {
  double lr = 0.01;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator = 0;
  double eps = 1e-10;
};

struct AdamOptions {
  double lr = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

struct AdamWOptions {
  double lr = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
};

struct RmsPropOptions {
  double lr = 0.01;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

struct FtrlOptions {
  double lr = 0.001;
  double lr_power = -0.5;
  double l1 = 0;
  double l2 = 0;
  double initial_accumulator = 0.1;
};

// Each can be made as a recipe, for variables, or for a module (a holder or a shared pointer),
// whose parameters and buffers become variables if they are not yet.
#define TRIREME_OPTIMIZER(Name)                                          \
  class Name : public Optimizer {                                        \
   public:                                                               \
    explicit Name(Name##Options options = {});                           \
    Name(const std::vector<Variable>& variables, Name##Options options); \
    template <typename Module>                                           \
      requires requires(Module& module) { *module; }                     \
    explicit Name(const Module& module, Name##Options options = {})      \
        : Name(track(module), options) {}                                \
  };
TRIREME_OPTIMIZER(Sgd)
TRIREME_OPTIMIZER(Adagrad)
TRIREME_OPTIMIZER(Adam)
TRIREME_OPTIMIZER(AdamW)
TRIREME_OPTIMIZER(RmsProp)
TRIREME_OPTIMIZER(Ftrl)
#undef TRIREME_OPTIMIZER

}  // namespace trireme
