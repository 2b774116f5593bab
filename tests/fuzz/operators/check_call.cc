#include "tests/fuzz/operators/check_call.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/fuzz/operators/guarded_memory.h"
#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/graph/argument.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"

// Each check runs the node twice, with new memory filled with two different bytes. If the outcomes
// differ, they depend on uninitialized memory. Arguments that the operator must not write to are
// read-only, and each block lies at an unmapped page (guarded_memory.h), so that a stray access
// crashes the process.
namespace trireme::fuzz {
namespace {

using at::Tensor;
using internal::GraphData;
using internal::Plan;

// One node as a graph. Its tensor arguments are the inputs of the graph; its results and the
// arguments to which it may write are the outputs.
struct OneNode {
  std::shared_ptr<GraphData> data = std::make_shared<GraphData>();
  std::vector<Tensor> inputs;
  std::vector<bool> written;     // per input: true if the node may write to it
  std::vector<int64_t> results;  // ids of the result values

  uint32_t add_value(proto::Value::Source source, const Tensor* tensor) {
    proto::Value* value = data->def.add_values();
    value->set_source(source);
    if (tensor != nullptr) internal::set_type(*tensor, value->mutable_type());
    return data->def.values_size() - 1;
  }
};

bool returns_list(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().returns(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::ListType;
  });
}

// Returns the number of tensors in each returned list, which a graph must state. The number depends
// on the arguments, so this runs the original call.
std::vector<size_t> list_lengths(const Call& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack = call.make(0);
  const int generator = internal::generator_argument(call.op);
  if (generator >= 0) stack[generator] = internal::make_step_generator(0, 0);
  call.op.callBoxed(stack);
  std::vector<size_t> lengths;
  for (const c10::IValue& result : stack) {
    lengths.push_back(result.isTensorList() ? result.toTensorVector().size() : 0);
  }
  return lengths;
}

OneNode make_node(const Call& call, const Arguments& arguments,
                  const std::vector<size_t>& lengths) {
  OneNode made;
  auto& def = made.data->def;
  def.set_name("fuzz");
  def.set_format(1);
  auto* node = def.add_nodes();
  node->set_op(full_name(call.op));
  const int generator = internal::generator_argument(call.op);
  const std::vector<int> writable = internal::writable_arguments(call.op);
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto* argument = node->add_arguments();
    if (static_cast<int>(i) == generator) {
      argument->set_generator(true);
      continue;
    }
    const bool written = std::ranges::find(writable, static_cast<int>(i)) != writable.end();
    internal::encode_argument(
        arguments[i],
        [&](const Tensor& tensor) -> int64_t {
          if (!tensor.defined()) return -1;
          const uint32_t value = made.add_value(proto::Value::INPUT, &tensor);
          def.mutable_values(value)->set_index(made.inputs.size());
          made.inputs.push_back(tensor);
          made.written.push_back(written);
          if (written) def.add_outputs(value);
          return value;
        },
        argument);
  }
  def.set_inputs(made.inputs.size());
  const auto& returns = call.op.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {
    auto* result = node->add_results();
    const auto kind = returns[i].type()->kind();
    if (internal::is_lstm_workspace(call.op, i)) {
      result->set_none(true);
    } else if (kind == c10::TypeKind::TensorType) {
      made.results.push_back(made.add_value(proto::Value::RESULT, nullptr));
      result->set_value(made.results.back());
    } else if (kind == c10::TypeKind::ListType && i < lengths.size()) {
      result->mutable_values();
      for (size_t k = 0; k < lengths[i]; ++k) {
        made.results.push_back(made.add_value(proto::Value::RESULT, nullptr));
        result->mutable_values()->add_ids(made.results.back());
      }
    } else {
      result->set_none(true);
    }
  }
  for (int64_t value : made.results) def.add_outputs(value);
  return made;
}

bool share_memory(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return false;
  if (a.layout() != at::kStrided) {
    return share_memory(a._indices(), b) || share_memory(a._values(), b);
  }
  if (b.layout() != at::kStrided) return share_memory(b, a);
  return a.has_storage() && b.has_storage() && a.storage().nbytes() > 0 && a.is_alias_of(b);
}

// Describes a result that shares memory with an argument although the plan does not say so. Returns
// an empty string if there is none.
std::string find_unknown_alias(const Plan& plan, const OneNode& node,
                               const std::vector<Tensor>& outputs) {
  const size_t first = outputs.size() - node.results.size();
  for (size_t i = 0; i < node.results.size(); ++i) {
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!share_memory(outputs[first + i], node.inputs[k])) continue;
      if (plan.storages[node.results[i]] == plan.storages[k]) continue;
      return "result " + std::to_string(i) + " shares memory with tensor " + std::to_string(k) +
             " of the arguments, which is not in the plan";
    }
  }
  return "";
}

// Returns the shapes, dtypes and all bytes of the tensors, or nullopt if one is too large.
std::optional<std::string> contents(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      bytes += "undefined;";
      continue;
    }
    std::vector<Tensor> pieces = {tensor};
    if (tensor.layout() == at::kSparse) pieces = {tensor._indices(), tensor._values()};
    for (const Tensor& piece : pieces) {
      if (!piece.has_storage() || piece.numel() > (1 << 20)) return std::nullopt;
      const Tensor whole = piece.resolve_conj().resolve_neg().contiguous();
      for (int64_t size : whole.sizes()) bytes += std::to_string(size) + ",";
      bytes += c10::toString(whole.scalar_type());
      if (whole.numel() > 0) {
        bytes.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
      }
    }
  }
  return bytes;
}

struct Outcome {
  bool accepted = false;
  std::string error, unknown_alias;
  std::optional<std::string> contents;
};

Outcome run(const Call& call, const std::vector<Mutation>& mutations, const CheckOptions& options,
            const std::vector<size_t>& lengths, uint8_t fill) {
  GuardedMemory::set_fill(fill);
  GuardedMemory::set_at_end(options.at_end);
  Outcome outcome;
  Arguments arguments;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    arguments = call.make(options.seed);
    for (const Mutation& mutation : mutations) apply(mutation, arguments);
  } catch (const std::exception& error) {  // the mutated arguments cannot be made
    outcome.error = error.what();
    return outcome;
  }
  const OneNode node = make_node(call, arguments, lengths);
  arguments.clear();
  auto compiled = internal::compile(node.data);
  if (!compiled.ok()) {
    outcome.error = describe(compiled.status());
    return outcome;
  }
  auto plan = std::make_shared<Plan>(**compiled);
  if (options.without_guards) {
    plan->nodes[0].rules = {};
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.written[i]) GuardedMemory::protect(node.inputs[i]);
  }
  auto outputs = internal::replay(*plan, node.inputs, {}, internal::make_step_generator(0, 0));
  if (!outputs.ok()) {
    outcome.error = describe(outputs.status());
    return outcome;
  }
  outcome.accepted = true;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    outcome.unknown_alias = find_unknown_alias(*plan, node, *outputs);
    outcome.contents = contents(*outputs);
  } catch (const std::exception&) {  // a result is too large to be compared
  }
  return outcome;
}

}  // namespace

Verdict check_call(const Call& call, const std::vector<Mutation>& mutations,
                   const CheckOptions& options) {
  constexpr uint8_t kFirst = 0x3d, kSecond = 0xc6;
  const std::vector<size_t> lengths =
      returns_list(call.op) ? list_lengths(call) : std::vector<size_t>();
  const Outcome first = run(call, mutations, options, lengths, kFirst);
  const Outcome second = run(call, mutations, options, lengths, kSecond);
  Verdict verdict{first.accepted, first.error, first.unknown_alias};
  if (!verdict.finding.empty()) return verdict;
  if (first.accepted != second.accepted) {
    verdict.finding = "uninitialized memory decides whether the call fails: " +
                      (first.accepted ? second.error : first.error);
  } else if (first.contents != second.contents) {
    verdict.finding = "the result depends on uninitialized memory";
  }
  return verdict;
}

}  // namespace trireme::fuzz
