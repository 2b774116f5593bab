// The update rules. Dense gradients go through LibTorch's fused kernels where it has them (SGD,
// Adagrad, Adam, AdamW), which update all parameters of a group in one operator, and otherwise
// through its foreach operators (RMSprop) or an operator of our own (FTRL). Sparse gradients go
// through the operators of row_updates.h.
//
// The rules give the results of torch::optim, and FTRL those of TensorFlow. Weight decay of a
// sparse update decays the rows that it touches.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/row_updates.h"
#include "trireme/optim/update_rule.h"
#include "trireme/tensor/dtype.h"

namespace trireme {
namespace internal {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, message);
}

// Calls `f` with the name and the value of each option. One list serves both directions, to a map
// and from a map.
template <typename F>
void for_each_option(SgdOptions& options, const F& f) {
  f("lr", options.lr);
  f("momentum", options.momentum);
  f("nesterov", options.nesterov);
  f("weight_decay", options.weight_decay);
}
template <typename F>
void for_each_option(AdagradOptions& options, const F& f) {
  f("lr", options.lr);
  f("lr_decay", options.lr_decay);
  f("weight_decay", options.weight_decay);
  f("initial_accumulator", options.initial_accumulator);
  f("eps", options.eps);
}
template <typename F, typename Options>
  requires std::is_same_v<Options, AdamOptions> || std::is_same_v<Options, AdamWOptions>
void for_each_option(Options& options, const F& f) {
  f("lr", options.lr);
  f("beta1", options.beta1);
  f("beta2", options.beta2);
  f("eps", options.eps);
  f("weight_decay", options.weight_decay);
  f("amsgrad", options.amsgrad);
}
template <typename F>
void for_each_option(RmsPropOptions& options, const F& f) {
  f("lr", options.lr);
  f("alpha", options.alpha);
  f("eps", options.eps);
  f("weight_decay", options.weight_decay);
  f("momentum", options.momentum);
  f("centered", options.centered);
}
template <typename F>
void for_each_option(FtrlOptions& options, const F& f) {
  f("lr", options.lr);
  f("lr_power", options.lr_power);
  f("l1", options.l1);
  f("l2", options.l2);
  f("initial_accumulator", options.initial_accumulator);
}

template <typename Options>
std::map<std::string, double> to_map(Options options) {
  std::map<std::string, double> map;
  for_each_option(options, [&](const char* name, auto& value) { map[name] = value; });
  return map;
}

// Returns the options in `map`, with defaults for the others. Throws Error for an unknown option.
template <typename Options>
Options from_map(const std::string& rule, const std::map<std::string, double>& map) {
  Options options;
  size_t known = 0;
  for_each_option(options, [&](const char* name, auto& value) {
    const auto found = map.find(name);
    if (found == map.end()) return;
    value = found->second;
    ++known;
  });
  if (known == map.size()) return options;
  const std::map<std::string, double> all = to_map(options);
  for (const auto& [name, value] : map) {
    require(all.contains(name), absl::StrCat("the optimizer ", rule, " has no option ", name));
  }
  return options;
}

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(SgdOptions options) : options_(options) {
    require(options.momentum > 0 || !options.nesterov, "Nesterov needs a momentum above 0");
  }
  std::string name() const override { return "sgd"; }
  const Rate& rate() const override { return options_.lr; }
  std::map<std::string, double> options() const override { return to_map(options_); }
  std::vector<Slot> slots() const override {
    return options_.momentum == 0 ? std::vector<Slot>{} : std::vector<Slot>{{"momentum"}};
  }
  void update(const Tensors& parameters, const Tensors& gradients, const SlotTensors& slots,
              const Tensor&, const Tensor& lr) const override {
    // Without dampening, a buffer of zeros makes the first step like any other. So the kernel need
    // not know which step is the first, which would be a constant of the graph.
    at::_fused_sgd_(parameters, gradients, slots.empty() ? Tensors{} : slots[0],
                    options_.weight_decay, options_.momentum, lr, /*dampening=*/0,
                    options_.nesterov, /*maximize=*/false, /*is_first_step=*/false);
  }
  void check_rows() const override {}
  void update_rows(const Tensor& parameter, const Tensor& gradient, const Tensors& slots,
                   const Tensor&, const Tensor& lr) const override {
    sgd_rows(parameter, slots.empty() ? Tensor() : slots[0], gradient, lr, options_.momentum,
             options_.nesterov, options_.weight_decay);
  }

 private:
  const SgdOptions options_;
};

class AdagradRule final : public UpdateRule {
 public:
  explicit AdagradRule(AdagradOptions options) : options_(options) {}
  std::string name() const override { return "adagrad"; }
  const Rate& rate() const override { return options_.lr; }
  std::map<std::string, double> options() const override { return to_map(options_); }
  std::vector<Slot> slots() const override { return {{"sum", options_.initial_accumulator}}; }
  void update(const Tensors& parameters, const Tensors& gradients, const SlotTensors& slots,
              const Tensor& step, const Tensor& lr) const override {
    at::_fused_adagrad_(parameters, gradients, slots[0], Tensors(parameters.size(), step), lr,
                        options_.lr_decay, options_.weight_decay, options_.eps,
                        /*maximize=*/false);
  }
  void check_rows() const override {}
  void update_rows(const Tensor& parameter, const Tensor& gradient, const Tensors& slots,
                   const Tensor& step, const Tensor& lr) const override {
    adagrad_rows(parameter, slots[0], gradient, step, lr, options_.lr_decay, options_.eps,
                 options_.weight_decay);
  }

 private:
  const AdagradOptions options_;
};

// Adam or AdamW. They differ in the kernel: Adam adds weight decay to the gradient, while AdamW
// shrinks the parameter directly.
template <typename Options>
class AdamRule final : public UpdateRule {
 public:
  static constexpr bool kDecoupled = std::is_same_v<Options, AdamWOptions>;

  explicit AdamRule(Options options) : options_(options) {}
  std::string name() const override { return kDecoupled ? "adamw" : "adam"; }
  const Rate& rate() const override { return options_.lr; }
  std::map<std::string, double> options() const override { return to_map(options_); }
  std::vector<Slot> slots() const override {
    std::vector<Slot> slots{{"exp_avg"}, {"exp_avg_sq"}};
    if (options_.amsgrad) slots.push_back({"max_exp_avg_sq"});
    return slots;
  }
  void update(const Tensors& parameters, const Tensors& gradients, const SlotTensors& slots,
              const Tensor& step, const Tensor& lr) const override {
    const Tensors largest = options_.amsgrad ? slots[2] : Tensors{};
    const Tensors steps(parameters.size(), step);
    if constexpr (kDecoupled) {
      at::_fused_adamw_(parameters, gradients, slots[0], slots[1], largest, steps, lr,
                        options_.beta1, options_.beta2, options_.weight_decay, options_.eps,
                        options_.amsgrad, /*maximize=*/false);
    } else {
      at::_fused_adam_(parameters, gradients, slots[0], slots[1], largest, steps, lr,
                       options_.beta1, options_.beta2, options_.weight_decay, options_.eps,
                       options_.amsgrad, /*maximize=*/false);
    }
  }
  void check_rows() const override {
    require(!options_.amsgrad, "AMSGrad is not defined for sparse gradients; set amsgrad to false");
  }
  void update_rows(const Tensor& parameter, const Tensor& gradient, const Tensors& slots,
                   const Tensor& step, const Tensor& lr) const override {
    check_rows();
    adam_rows(parameter, slots[0], slots[1], gradient, step, lr, options_.beta1, options_.beta2,
              options_.eps, kDecoupled ? 0 : options_.weight_decay,
              kDecoupled ? options_.weight_decay : 0);
  }

 private:
  const Options options_;
};

class RmsPropRule final : public UpdateRule {
 public:
  explicit RmsPropRule(RmsPropOptions options) : options_(options) {}
  std::string name() const override { return "rmsprop"; }
  const Rate& rate() const override { return options_.lr; }
  std::map<std::string, double> options() const override { return to_map(options_); }
  std::vector<Slot> slots() const override {
    std::vector<Slot> slots{{"square_avg"}};
    if (options_.momentum > 0) slots.push_back({"momentum"});
    if (options_.centered) slots.push_back({"grad_avg"});
    return slots;
  }
  void update(const Tensors& parameters, const Tensors& gradients, const SlotTensors& slots,
              const Tensor&, const Tensor& lr) const override {
    Tensors gradient = gradients;
    if (options_.weight_decay != 0) {
      gradient = at::_foreach_add(gradients, parameters, options_.weight_decay);
    }
    const Tensors& square = slots[0];
    at::_foreach_mul_(square, options_.alpha);
    at::_foreach_addcmul_(square, gradient, gradient, 1 - options_.alpha);
    Tensors denominator;
    if (options_.centered) {
      const Tensors& mean = slots.back();
      at::_foreach_lerp_(mean, gradient, 1 - options_.alpha);
      denominator = at::_foreach_sqrt(at::_foreach_addcmul(square, mean, mean, -1));
    } else {
      denominator = at::_foreach_sqrt(square);
    }
    at::_foreach_add_(denominator, options_.eps);
    if (options_.momentum > 0) {
      const Tensors& buffer = slots[1];
      at::_foreach_mul_(buffer, options_.momentum);
      at::_foreach_addcdiv_(buffer, gradient, denominator, 1);
      at::_foreach_sub_(parameters, at::_foreach_mul(buffer, lr));
    } else {
      Tensors delta = at::_foreach_div(gradient, denominator);
      at::_foreach_mul_(delta, lr);
      at::_foreach_sub_(parameters, delta);
    }
  }
  void check_rows() const override {}
  void update_rows(const Tensor& parameter, const Tensor& gradient, const Tensors& slots,
                   const Tensor&, const Tensor& lr) const override {
    rmsprop_rows(parameter, slots[0], options_.momentum > 0 ? slots[1] : Tensor(),
                 options_.centered ? slots.back() : Tensor(), gradient, lr, options_.alpha,
                 options_.eps, options_.momentum, options_.weight_decay);
  }

 private:
  const RmsPropOptions options_;
};

// FTRL-Proximal: McMahan et al., "Ad click prediction: a view from the trenches", as TensorFlow's
// Ftrl computes it.
class FtrlRule final : public UpdateRule {
 public:
  explicit FtrlRule(FtrlOptions options) : options_(options) {
    require(options.lr_power <= 0, "FTRL's lr_power must be 0 or less");
    require(options.l1 >= 0 && options.l2 >= 0, "FTRL's l1 and l2 must be 0 or more");
    require(options.initial_accumulator > 0 || options.lr_power == 0,
            "FTRL's initial_accumulator must be above 0");
  }
  std::string name() const override { return "ftrl"; }
  const Rate& rate() const override { return options_.lr; }
  std::map<std::string, double> options() const override { return to_map(options_); }
  std::vector<Slot> slots() const override {
    return {{"accumulator", options_.initial_accumulator}, {"linear"}};
  }
  void update(const Tensors& parameters, const Tensors& gradients, const SlotTensors& slots,
              const Tensor&, const Tensor& lr) const override {
    for (size_t i = 0; i < parameters.size(); ++i) {
      ftrl(parameters[i], slots[0][i], slots[1][i], gradients[i], lr, options_.lr_power,
           options_.l1, options_.l2);
    }
  }
  void check_rows() const override {}
  void update_rows(const Tensor& parameter, const Tensor& gradient, const Tensors& slots,
                   const Tensor&, const Tensor& lr) const override {
    ftrl_rows(parameter, slots[0], slots[1], gradient, lr, options_.lr_power, options_.l1,
              options_.l2);
  }

 private:
  const FtrlOptions options_;
};

template <typename Rule, typename Options>
std::shared_ptr<const UpdateRule> make(const std::string& name,
                                       const std::map<std::string, double>& options) {
  return std::make_shared<Rule>(from_map<Options>(name, options));
}

}  // namespace

void UpdateRule::check_dtype(at::ScalarType dtype) const {
  const bool real =
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
  require(real,
          absl::StrCat("the optimizer ", name(), " cannot update a variable of dtype ",
                       dtype_name(dtype), "; it needs float16, bfloat16, float32 or float64"));
}

std::shared_ptr<const UpdateRule> make_rule(const std::string& name,
                                            const std::map<std::string, double>& options) {
  using Maker = std::shared_ptr<const UpdateRule> (*)(const std::string&,
                                                      const std::map<std::string, double>&);
  static const std::map<std::string, Maker> makers = {
      {"sgd", make<SgdRule, SgdOptions>},
      {"adagrad", make<AdagradRule, AdagradOptions>},
      {"adam", make<AdamRule<AdamOptions>, AdamOptions>},
      {"adamw", make<AdamRule<AdamWOptions>, AdamWOptions>},
      {"rmsprop", make<RmsPropRule, RmsPropOptions>},
      {"ftrl", make<FtrlRule, FtrlOptions>},
  };
  const auto found = makers.find(name);
  require(found != makers.end(), absl::StrCat("'", name, "' is not a valid optimizer"));
  return found->second(name, options);
}

}  // namespace internal

#define TRIREME_DEFINE(Name, Rule)                                                            \
  Name::Name(Name##Options options) : Optimizer(std::make_shared<internal::Rule>(options)) {} \
  Name::Name(const std::vector<Variable>& variables, Name##Options options)                   \
      : Optimizer(std::make_shared<internal::Rule>(options), variables) {}
TRIREME_DEFINE(Sgd, SgdRule)
TRIREME_DEFINE(Adagrad, AdagradRule)
TRIREME_DEFINE(Adam, AdamRule<AdamOptions>)
TRIREME_DEFINE(AdamW, AdamRule<AdamWOptions>)
TRIREME_DEFINE(RmsProp, RmsPropRule)
TRIREME_DEFINE(Ftrl, FtrlRule)
#undef TRIREME_DEFINE

}  // namespace trireme
