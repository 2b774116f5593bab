#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/optim/schedule.h"

namespace torch::optim {
struct SGDOptions;
struct AdagradOptions;
struct AdamOptions;
struct AdamWOptions;
struct RMSpropOptions;
}  // namespace torch::optim

namespace trireme {
namespace internal {
class UpdateRule;

// A holder of a module, or a shared pointer to one.
template <typename T>
concept ModulePointer = requires(T& module) { *module; };

// Returns options with the values of an option struct of torch::optim.
template <typename Options, typename Torch>
Options from_torch(const Torch& torch);

// Replaces gradients by zeros. Skips undefined ones.
void set_to_zeros(std::vector<at::Tensor>& gradients);
}  // namespace internal

// Options of Optimizer::minimize().
struct MinimizeOptions {
  // Largest norm of all gradients together. Larger gradients are scaled down to it. 0 for no limit.
  double clip_norm = 0;
};

// Updates variables with their gradients. Use one of the classes below:
//
//   tr::Adam optimizer(net, {.lr = 0.001});
//   auto step = tr::function("step", [&](const torch::Tensor& x, const torch::Tensor& y) {
//     torch::Tensor loss = torch::mse_loss(net->forward(x), y);
//     optimizer.minimize(loss);
//     return loss;
//   });
//
// Its state, step count and learning rate are variables, so captured steps update them too. An
// optimizer that is made without variables is a recipe: bind() makes an optimizer of it. The state
// of variables on parameter servers lives there, and the servers apply the updates.
//
// In one of several replicas (strategy.run()) gradients are not applied at once. After the last
// replica their sum over the replicas is applied, and clip_norm limits the norm of that sum.
//
// A handle: copies share the state. Not synchronised, like the variables that it changes.
class Optimizer {
 public:
  // Computes the gradients of `loss`, a single number, and applies them. Does not touch `.grad` of
  // any variable. A variable that `loss` does not depend on stays as it is. Throws Error if that is
  // true of all of them, or if the variables are on parameter servers and no function is being
  // captured.
  void minimize(const at::Tensor& loss, MinimizeOptions options = {}) const;
  // Applies the given gradients, one for each of variables(). An undefined one leaves its variable
  // as it is. Throws Error if their number is wrong.
  void apply_gradients(const std::vector<at::Tensor>& gradients) const;
  // Applies the gradients in `.grad`. For loops that call backward() themselves: zero_grad(),
  // backward(), step(). Throws Error if no variable has one, or if the variables are on parameter
  // servers and no function is being captured.
  void step() const;
  // Clears `.grad` of the variables.
  void zero_grad() const;

  // Sets the learning rate. Captured steps use it from then on, without another capture. Loops that
  // follow a schedule call it before each step; fit() does that itself.
  void set_lr(double lr) const;
  // Returns the learning rate.
  double lr() const;
  // Returns the schedule that its options have as the learning rate; null if that is a number.
  const Schedule& schedule() const;

  // Returns the variables that it trains: the trainable ones among those it was made with. Throws
  // Error for a recipe.
  const std::vector<Variable>& variables() const;
  // Returns its state: step count, learning rate, and the slots of all variables. Throws Error for
  // a recipe.
  std::vector<Variable> state() const;

  // Returns false for a recipe.
  bool is_bound() const { return bound_ != nullptr; }
  // Returns an optimizer with the same options for `variables`, with fresh state. Throws Error if
  // no variable is trainable, or if a function is being captured, which would lose the state.
  Optimizer bind(const std::vector<Variable>& variables) const;

 protected:
  // Makes a recipe. For the classes below.
  explicit Optimizer(std::shared_ptr<const internal::UpdateRule> rule);
  // Makes an optimizer for `variables`. For the classes below.
  Optimizer(std::shared_ptr<const internal::UpdateRule> rule,
            const std::vector<Variable>& variables);

 private:
  friend struct internal::Access<Optimizer>;
  struct Bound;
  const Bound& bound() const;
  struct Call;
  // Does what minimize() does, with zeros in place of the gradients if `as_zeros` is true.
  void minimize_as(const at::Tensor& loss, const MinimizeOptions& options, bool as_zeros) const;
  void update(const Call& call, std::vector<at::Tensor> gradients) const;
  void apply(const std::vector<at::Tensor>& gradients) const;

  std::shared_ptr<const internal::UpdateRule> rule_;
  std::shared_ptr<const Bound> bound_;
};

template <>
struct internal::Access<Optimizer> {
  static const UpdateRule& rule(const Optimizer& optimizer) { return *optimizer.rule_; }
  // Returns the update count. It is not used if the variables are on parameter servers, which count
  // the updates of each variable there. Throws Error for a recipe.
  static const Variable& step(const Optimizer& optimizer);
  // Returns the slots: for each slot of the rule, a list parallel to variables(). Empty if the
  // variables are on parameter servers, which hold the slots. Throws Error for a recipe.
  static const std::vector<std::vector<Variable>>& slots(const Optimizer& optimizer);
  // Returns the gradients of a loss, one for each of variables(); undefined for those that it does
  // not depend on.
  static std::vector<at::Tensor> gradients_of(const Optimizer& optimizer, const at::Tensor& loss);
  // Does what minimize() does in a replica that takes part in a step, but adds nothing to it: the
  // gradients of the variables that the loss depends on are zeros, even if they are not numbers.
  static void minimize_as_zeros(const Optimizer& optimizer, const at::Tensor& loss,
                                const MinimizeOptions& options);
};

// The optimizers. Their options have the meaning that they have in torch::optim, and those of Ftrl
// the meaning that they have in TensorFlow. A gradient by rows changes these rows and their state
// only: weight decay decays them once for each update that has them, and leaves other rows alone.
//
// Each has three constructors: without variables, as a recipe; for variables; and for a module (a
// holder or a shared pointer), whose parameters and buffers become variables if they are not yet
// (module.h). The last two throw Error as Optimizer::bind() does. The options may also be those of
// torch::optim, as in tr::Adam(net, torch::optim::AdamOptions(0.001)). The learning rate may be a
// schedule, which fit() follows.

// Options of Sgd.
struct SgdOptions {
  Rate lr = 0.01;           // learning rate to start with
  double momentum = 0;      // share of the last update that is carried on; 0 for none
  bool nesterov = false;    // true for Nesterov momentum, which needs a momentum above 0
  double weight_decay = 0;  // factor of the L2 penalty
};

// Stochastic gradient descent, with momentum if the options ask for it.
//
//   tr::Sgd optimizer(net, {.lr = 0.1, .momentum = 0.9});
class Sgd : public Optimizer {
 public:
  // Makes a recipe, which bind() makes optimizers of.
  explicit Sgd(SgdOptions options = {});
  // Makes an optimizer for `variables`.
  Sgd(const std::vector<Variable>& variables, SgdOptions options);
  // Makes an optimizer for the parameters of `module`.
  template <internal::ModulePointer Module>
  explicit Sgd(const Module& module, SgdOptions options = {}) : Sgd(track(module), options) {}
  // Makes a recipe with options of torch::optim.
  template <std::same_as<torch::optim::SGDOptions> T>
  explicit Sgd(const T& options) : Sgd(internal::from_torch<SgdOptions>(options)) {}
  // Makes an optimizer for variables or for a module, with options of torch::optim.
  template <typename Subject, std::same_as<torch::optim::SGDOptions> T>
  Sgd(const Subject& subject, const T& options)
      : Sgd(subject, internal::from_torch<SgdOptions>(options)) {}
};

// Options of Adagrad.
struct AdagradOptions {
  Rate lr = 0.01;                  // learning rate to start with
  double lr_decay = 0;             // step n has the rate lr / (1 + (n - 1) * lr_decay)
  double weight_decay = 0;         // factor of the L2 penalty
  double initial_accumulator = 0;  // initial sum of squared gradients
  double eps = 1e-10;              // number that is added to denominators
};

// Adagrad: divides by the root of the sum of all squared gradients, element by element.
class Adagrad : public Optimizer {
 public:
  // Makes a recipe, which bind() makes optimizers of.
  explicit Adagrad(AdagradOptions options = {});
  // Makes an optimizer for `variables`.
  Adagrad(const std::vector<Variable>& variables, AdagradOptions options);
  // Makes an optimizer for the parameters of `module`.
  template <internal::ModulePointer Module>
  explicit Adagrad(const Module& module, AdagradOptions options = {})
      : Adagrad(track(module), options) {}
  // Makes a recipe with options of torch::optim.
  template <std::same_as<torch::optim::AdagradOptions> T>
  explicit Adagrad(const T& options) : Adagrad(internal::from_torch<AdagradOptions>(options)) {}
  // Makes an optimizer for variables or for a module, with options of torch::optim.
  template <typename Subject, std::same_as<torch::optim::AdagradOptions> T>
  Adagrad(const Subject& subject, const T& options)
      : Adagrad(subject, internal::from_torch<AdagradOptions>(options)) {}
};

// Options of Adam.
struct AdamOptions {
  Rate lr = 0.001;          // learning rate to start with
  double beta1 = 0.9;       // decay of the mean of gradients
  double beta2 = 0.999;     // decay of the mean of squared gradients
  double eps = 1e-8;        // number that is added to denominators
  double weight_decay = 0;  // factor of the L2 penalty
  bool amsgrad = false;     // true for AMSGrad, which does not support sparse gradients
};

// Adam: divides the mean of gradients by the root of the mean of their squares.
class Adam : public Optimizer {
 public:
  // Makes a recipe, which bind() makes optimizers of.
  explicit Adam(AdamOptions options = {});
  // Makes an optimizer for `variables`.
  Adam(const std::vector<Variable>& variables, AdamOptions options);
  // Makes an optimizer for the parameters of `module`.
  template <internal::ModulePointer Module>
  explicit Adam(const Module& module, AdamOptions options = {}) : Adam(track(module), options) {}
  // Makes a recipe with options of torch::optim.
  template <std::same_as<torch::optim::AdamOptions> T>
  explicit Adam(const T& options) : Adam(internal::from_torch<AdamOptions>(options)) {}
  // Makes an optimizer for variables or for a module, with options of torch::optim.
  template <typename Subject, std::same_as<torch::optim::AdamOptions> T>
  Adam(const Subject& subject, const T& options)
      : Adam(subject, internal::from_torch<AdamOptions>(options)) {}
};

// Options of AdamW.
struct AdamWOptions {
  Rate lr = 0.001;             // learning rate to start with
  double beta1 = 0.9;          // decay of the mean of gradients
  double beta2 = 0.999;        // decay of the mean of squared gradients
  double eps = 1e-8;           // number that is added to denominators
  double weight_decay = 0.01;  // decoupled: each update shrinks the variable by lr * weight_decay
  bool amsgrad = false;        // true for AMSGrad, which does not support sparse gradients
};

// Adam with decoupled weight decay.
class AdamW : public Optimizer {
 public:
  // Makes a recipe, which bind() makes optimizers of.
  explicit AdamW(AdamWOptions options = {});
  // Makes an optimizer for `variables`.
  AdamW(const std::vector<Variable>& variables, AdamWOptions options);
  // Makes an optimizer for the parameters of `module`.
  template <internal::ModulePointer Module>
  explicit AdamW(const Module& module, AdamWOptions options = {}) : AdamW(track(module), options) {}
  // Makes a recipe with options of torch::optim.
  template <std::same_as<torch::optim::AdamWOptions> T>
  explicit AdamW(const T& options) : AdamW(internal::from_torch<AdamWOptions>(options)) {}
  // Makes an optimizer for variables or for a module, with options of torch::optim.
  template <typename Subject, std::same_as<torch::optim::AdamWOptions> T>
  AdamW(const Subject& subject, const T& options)
      : AdamW(subject, internal::from_torch<AdamWOptions>(options)) {}
};

// Options of RmsProp.
struct RmsPropOptions {
  Rate lr = 0.01;           // learning rate to start with
  double alpha = 0.99;      // decay of the mean of squared gradients
  double eps = 1e-8;        // number that is added to denominators
  double weight_decay = 0;  // factor of the L2 penalty
  double momentum = 0;      // share of the last update that is carried on; 0 for none
  bool centered = false;    // true to divide by the standard deviation of gradients
};

// RMSprop: divides by the root of the mean of squared gradients.
class RmsProp : public Optimizer {
 public:
  // Makes a recipe, which bind() makes optimizers of.
  explicit RmsProp(RmsPropOptions options = {});
  // Makes an optimizer for `variables`.
  RmsProp(const std::vector<Variable>& variables, RmsPropOptions options);
  // Makes an optimizer for the parameters of `module`.
  template <internal::ModulePointer Module>
  explicit RmsProp(const Module& module, RmsPropOptions options = {})
      : RmsProp(track(module), options) {}
  // Makes a recipe with options of torch::optim.
  template <std::same_as<torch::optim::RMSpropOptions> T>
  explicit RmsProp(const T& options) : RmsProp(internal::from_torch<RmsPropOptions>(options)) {}
  // Makes an optimizer for variables or for a module, with options of torch::optim.
  template <typename Subject, std::same_as<torch::optim::RMSpropOptions> T>
  RmsProp(const Subject& subject, const T& options)
      : RmsProp(subject, internal::from_torch<RmsPropOptions>(options)) {}
};

// Options of Ftrl.
struct FtrlOptions {
  Rate lr = 0.001;                   // learning rate to start with
  double lr_power = -0.5;            // power of the accumulator that scales the rate; 0 or less
  double l1 = 0;                     // strength of L1 regularisation, which makes weights zero
  double l2 = 0;                     // strength of L2 regularisation
  double initial_accumulator = 0.1;  // initial sum of squared gradients; above 0
};

// FTRL-Proximal, for sparse linear models: L1 regularisation makes weights exactly zero.
class Ftrl : public Optimizer {
 public:
  // Makes a recipe, which bind() makes optimizers of.
  explicit Ftrl(FtrlOptions options = {});
  // Makes an optimizer for `variables`.
  Ftrl(const std::vector<Variable>& variables, FtrlOptions options);
  // Makes an optimizer for the parameters of `module`.
  template <internal::ModulePointer Module>
  explicit Ftrl(const Module& module, FtrlOptions options = {}) : Ftrl(track(module), options) {}
};

}  // namespace trireme

#include "trireme/optim/optimizer_inl.h"
