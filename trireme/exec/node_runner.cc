// Runs one node: pushes its arguments, checks them, calls the operator and stores its results.
//
// The graph may come from an untrusted peer, so nothing about the arguments is taken for granted,
// except for the contents of accelerators if the program runs a graph of its own
// (graph/trusted_contents.h). Compiling has checked types and order. What can only be known at run
// time is checked here before every call: sparse indices, undefined tensors, and the rules of the
// operator (call_rules.h). Afterwards, results are trimmed and uninitialized memory is cleared, so
// that a graph cannot read what the process computed for others.
#include "trireme/exec/node_runner.h"

#include <ATen/ops/alias.h>

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/exec/mkl_warm_up.h"
#include "trireme/exec/random.h"
#include "trireme/exec/step_generator.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/guards.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/trusted_contents.h"
#include "trireme/tensor/host_copy.h"

namespace trireme::internal {
namespace {

using Kind = ArgumentPlan::Kind;

// Copies of at least this size leave an accelerator through page-locked memory. Smaller ones gain
// nothing, and a program that keeps its results would lock a page for each.
constexpr size_t kStagedBytes = 64 << 10;

absl::Status check_count(const char* what, size_t expected, size_t given) {
  if (expected == given) return absl::OkStatus();
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("the graph takes ", expected, " ", what, ", but got ", given));
}

void guard_layout(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.layout() != at::kStrided) guard_sparse(tensor);
}

// Returns the device on which an operator with these arguments runs: that of a tensor, or the one
// that it is told.
c10::Device device_of(const torch::jit::Stack& arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
    if (argument.isDevice()) return argument.toDevice();
  }
  return c10::kCPU;
}

// Zeroes the results of `empty` and its variants, whose memory may hold what others computed. The
// whole storage is zeroed: another view can show the elements that the result's strides skip.
void clear(torch::jit::Stack& results) {
  for (c10::IValue& result : results) {
    if (!result.isTensor()) continue;
    const at::Tensor& tensor = result.toTensor();
    if (tensor.layout() == at::kStrided && tensor.device().is_cpu()) {
      if (tensor.storage().nbytes() == 0) continue;
      std::memset(tensor.storage().mutable_data(), 0, tensor.storage().nbytes());
    } else {
      tensor.zero_();
    }
  }
}

}  // namespace

NodeRunner::NodeRunner(const Plan& plan, at::Generator generator, uint64_t device_seed)
    : plan_(plan),
      generator_(std::move(generator)),
      device_seed_(device_seed),
      values_(plan.graph->def.values_size()) {
  warm_up_mkl();
  if (plan_.has_moves) moves_.emplace(plan_);
}

absl::Status NodeRunner::bind(const std::vector<at::Tensor>& inputs,
                              const std::vector<at::Tensor>& variables) {
  TRIREME_RETURN_IF_ERROR(check_count("inputs", plan_.input_values.size(), inputs.size()));
  TRIREME_RETURN_IF_ERROR(check_count("variables", plan_.variable_values.size(), variables.size()));
  const auto place = [this](const std::vector<int64_t>& values, size_t i, at::Tensor tensor) {
    if (values[i] >= 0) values_[values[i]] = std::move(tensor);
  };
  for (size_t i = 0; i < inputs.size(); ++i) place(plan_.input_values, i, inputs[i]);
  for (size_t i = 0; i < variables.size(); ++i) place(plan_.variable_values, i, variables[i]);
  const auto& constants = plan_.graph->constants;
  for (size_t i = 0; i < constants.size(); ++i) {
    place(plan_.constant_values, i,
          plan_.constant_written[i] ? constants[i].clone() : constants[i]);
  }
  return absl::OkStatus();
}

void NodeRunner::execute(const NodePlan& node, torch::jit::Stack& stack, bool in_order,
                         int replica) {
  const TrustDeviceContents trust(trusted_);
  stack.clear();
  for (const ArgumentPlan& argument : node.arguments) push(argument, stack, in_order);
  for (int i : node.aliased) stack[i] = at::alias(stack[i].toTensor());
  enforce(node.rules, stack);
  call(node, stack, replica);
  trim_results(node.rules, stack);
  if (node.makes_uninitialized) clear(stack);
  store_results(node, stack);
  stack.clear();
  if (!in_order) return;
  for (uint32_t value : node.free_after) values_[value] = c10::IValue();
}

void NodeRunner::push(const ArgumentPlan& argument, torch::jit::Stack& stack, bool in_order) {
  switch (argument.kind) {
    case Kind::kConstant:
      stack.push_back(argument.constant);
      return;
    case Kind::kValue:
      if (values_[argument.value].isTensor()) await_move(argument.value);
      if (argument.last_use && in_order) {
        stack.push_back(std::move(values_[argument.value]));
      } else {
        stack.push_back(values_[argument.value]);
      }
      if (!stack.back().isTensor()) return;
      if (argument.required && !stack.back().toTensor().defined()) {
        throw Error(ErrorCode::kInvalidArgument, "one of its arguments is an undefined tensor");
      }
      guard_layout(stack.back().toTensor());
      return;
    case Kind::kValues: {
      c10::List<at::Tensor> list;
      list.reserve(argument.values.size());
      for (int64_t value : argument.values) {
        await_move(value);
        list.push_back(values_[value].toTensor());
        guard_layout(values_[value].toTensor());
      }
      stack.push_back(std::move(list));
      return;
    }
    case Kind::kOptionalValues: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(argument.values.size());
      for (int64_t value : argument.values) {
        if (value >= 0) await_move(value);
        if (value >= 0) guard_layout(values_[value].toTensor());
        list.push_back(value < 0 ? std::nullopt
                                 : std::optional<at::Tensor>(values_[value].toTensor()));
      }
      stack.push_back(std::move(list));
      return;
    }
    case Kind::kGenerator:
      stack.push_back(generator_);
      return;
  }
}

void NodeRunner::call(const NodePlan& node, torch::jit::Stack& stack, int replica) {
  if (node.moves && call_move(node, stack)) return;
  if (!node.random) return node.op.callBoxed(stack);
  at::Generator& generator = generator_of(replica, device_of(stack));
  if (node.has_generator) {
    stack[generator_argument(node.op)] = generator;
    return node.op.callBoxed(stack);
  }
  // An operator without a generator argument draws from the default generator of its device, which
  // continues the step's stream during the call.
  BorrowDefaultGenerator borrow(generator);
  node.op.callBoxed(stack);
}

bool NodeRunner::call_move(const NodePlan& node, torch::jit::Stack& stack) {
  // Positions of the arguments of aten::_to_copy.
  constexpr size_t kDtype = 1, kLayout = 2, kDevice = 3, kNonBlocking = 5, kMemoryFormat = 6;
  if (!stack[kDevice].isDevice() || node.results[0].value < 0) return false;
  const at::Tensor source = stack[0].toTensor();
  const c10::Device to = stack[kDevice].toDevice();
  if (source.device() == to) return false;
  if (source.is_cpu()) {
    // Page-locked memory would be read later, when the program may have written to its input.
    if (source.is_pinned()) stack[kNonBlocking] = false;
    return false;
  }
  if (to.is_cpu()) {
    const bool converts =
        !stack[kDtype].isNone() || !stack[kLayout].isNone() || !stack[kMemoryFormat].isNone();
    if (converts || source.layout() != at::kStrided || source.nbytes() < kStagedBytes) return false;
    stack.clear();
    stack.emplace_back(copy_to_host(source));
    return true;
  }
  if (!moves_) return false;
  moves_->move(node.arguments[0].value, static_cast<uint32_t>(node.results[0].value), source, to,
               [&] {
                 node.op.callBoxed(stack);
                 return stack[0].toTensor();
               });
  return true;
}

// Replicas and devices draw different numbers, except for the first device of each kind. With
// device seeds, accelerators of different tasks do so as well. The CPUs of all tasks draw in turn.
at::Generator& NodeRunner::generator_of(int replica, c10::Device device) {
  if (replica < 0 && device.is_cpu()) return generator_;
  MutexLock lock(mutex_);
  at::Generator& generator = generators_[{replica, device.str()}];
  if (!generator.defined()) {
    uint64_t seed = generator_.current_seed();
    if (replica >= 0) seed = step_seed(seed, static_cast<uint64_t>(replica) + 1);
    if (!device.is_cpu() && device_seed_ != 0) seed = step_seed(seed, device_seed_);
    if (device.index() > 0) seed = step_seed(~seed, static_cast<uint64_t>(device.index()));
    generator = make_device_generator(device, seed);
  }
  return generator;
}

void NodeRunner::store_results(const NodePlan& node, torch::jit::Stack& stack) {
  for (size_t i = 0; i < node.results.size(); ++i) {
    const NodePlan::Result& result = node.results[i];
    if (result.value >= 0) {
      values_[result.value] = std::move(stack[i]);
    } else if (!result.list.empty()) {
      store_list(result, stack[i].toTensorVector());
    }
  }
}

void NodeRunner::store_list(const NodePlan::Result& result, std::vector<at::Tensor> tensors) {
  if (tensors.size() != result.list.size()) {
    throw Error(ErrorCode::kInternal, absl::StrCat("it returned ", tensors.size(), " tensors, but ",
                                                   result.list.size(), " when it was captured"));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (result.list[i] >= 0) values_[result.list[i]] = std::move(tensors[i]);
  }
}

at::Tensor NodeRunner::output(size_t index) const {
  const int64_t value = plan_.graph->def.outputs(static_cast<int>(index));
  if (value < 0) return {};
  const at::Tensor& output = values_[value].toTensor();
  return plan_.output_copied[index] && output.defined() ? output.clone() : output;
}

std::vector<at::Tensor> NodeRunner::outputs() const {
  std::vector<at::Tensor> outputs(plan_.output_copied.size());
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = output(i);
  return outputs;
}

Origin NodeRunner::origin() const {
  return {"", absl::StrCat("function '", plan_.graph->def.name(), "'")};
}

absl::Status NodeRunner::current_exception_as_status(size_t node) const {
  std::string why;
  ErrorCode code = ErrorCode::kInternal;
  try {
    throw;
  } catch (const Error& error) {
    why = error.message();
    code = error.code();
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  return make_status(code, absl::StrCat(describe_node(plan_, node), " failed: ", why), origin());
}

}  // namespace trireme::internal
