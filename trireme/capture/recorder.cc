// Beginning and end of a capture: the inputs of the step, its outputs, and the checks for effects
// that a graph cannot repeat. recorder_call.cc records the operators in between,
// recorder_checks.cc decides what is rejected meanwhile, and recorder_values.cc which value of the
// graph a tensor is.
//
// The recorder sees operators only. C++ code can also write through data_ptr(), replace a tensor's
// memory, or keep a tensor for later, and a replay would do none of that. finish() finds such
// effects by comparing state from before the step with state after it:
//
// - The memory of variables, arguments and tensors of the program has the same fingerprint. Kernels
//   wrote to scratch copies only, so any difference is a hidden write. A variable that a replay on
//   another thread wrote meanwhile is not compared (VariableRecord::replays).
// - A variable has the same storage, so the step did not call set_data().
// - No storage that an operator made is still referenced, apart from the outputs. The value table
//   holds storages weakly, so a live one means that the program kept a tensor.
#include "trireme/capture/recorder.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/fingerprint.h"
#include "trireme/capture/scratch.h"
#include "trireme/exec/step_generator.h"

namespace trireme::internal {

Recorder::Recorder(const CaptureOptions& options)
    : options_(options),
      lock_message_(absl::StrCat(
          "function '", options.name,
          "' cannot be captured: it reads or writes the contents of a tensor without an operator "
          "(through data_ptr or an accessor, or by printing it), so that replays would go on with "
          "the numbers of the capture. Use operators, and print what the function returns")),
      builder_(options.name),
      generator_(make_step_generator(options.seed, options.step)) {
  for (const auto& record : live_variables()) {
    if (!record->tensor.has_storage()) continue;
    const auto [found, added] =
        variable_storages_.try_emplace(record->tensor.storage().unsafeGetStorageImpl(), record);
    if (!added) sharing_.insert({found->second->name, record->name});
  }
  last_sequence_ = at::sequence_number::peek();
}

at::Tensor Recorder::add_input(const at::Tensor& original) {
  const size_t index = inputs_.size();
  builder_.mutable_def().set_inputs(index + 1);
  if (!original.defined()) return inputs_.emplace_back();
  if (original.layout() != at::kStrided) {
    throw Error(ErrorCode::kUnimplemented,
                absl::StrCat("argument ", index,
                             " of the function is a sparse tensor; pass its "
                             "indices and values instead"));
  }
  at::Tensor copy = scratch_copy(original);
  perturb_argument(copy, options_.perturbation);
  Memory& memory = table_.add(copy, MemoryOrigin::kInput, index);
  const uint32_t value = builder_.add_value(proto::Value::INPUT, index, copy);
  memory.values.emplace_back(table_.geometry_of(copy), value);
  memory.fingerprint = fingerprint(*copy.storage().unsafeGetStorageImpl());
  inputs_.push_back(copy.detach());
  if (options_.lock_memory) set_locked(memory, true);
  return copy;
}

void Recorder::add_leftover_gradient(const at::Tensor& gradient) {
  if (gradient.has_storage()) table_.add(gradient, MemoryOrigin::kLeftoverGradient, 0);
}

std::vector<at::Tensor> Recorder::set_outputs(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> detached;
  const c10::impl::ExcludeDispatchKeyGuard no_reentry(kCaptureKey);
  current_op_ = "return";
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.has_storage()) {
      Memory& memory = memory_of(output);
      if (memory.origin == MemoryOrigin::kLeftoverGradient) {
        refuse("the function returns the gradient that an earlier step left in '.grad'");
      }
      handle_hidden_write(memory, output);
      output_memories_.push_back(&memory);
    }
    if (output.defined() && output.is_sparse()) {
      refuse("the function returns a sparse tensor; return its indices and values, or to_dense()");
    }
    builder_.mutable_def().add_outputs(value_of(output));
    detached.push_back(output.defined() ? substitute(output).detach() : output);
  }
  return detached;
}

Captured Recorder::finish(std::vector<at::Tensor> outputs) {
  unlock_all();
  current_op_.clear();
  // The variables themselves must be untouched.
  for (const VariableUse& use : variables_) {
    const auto* storage = use.record->tensor.storage().unsafeGetStorageImpl();
    const Origin origin{"", absl::StrCat("variable '", use.record->name, "'")};
    if (storage != use.live_storage) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "the function replaced its memory (by set_data or an assignment to .data()); use "
                  "assign(), or copy_() under torch::NoGradGuard",
                  origin);
    }
    if (use.record->replays == use.replays && fingerprint(*storage) != use.live_fingerprint) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "the function wrote to it without an operator (through data_ptr or an accessor), "
                  "which a replay cannot repeat",
                  origin);
    }
  }
  // All other memory: arguments and constants must be unchanged, results must be gone.
  for (const Memory& memory : table_.memories()) {
    const auto storage = memory.storage->lock();
    if (!storage) continue;
    const bool outside =
        memory.origin == MemoryOrigin::kInput || memory.origin == MemoryOrigin::kExternal;
    if (outside && fingerprint(*storage) != memory.fingerprint) {
      refuse(
          "the function wrote to an argument or to a tensor of the program without an operator "
          "(through data_ptr or an accessor), which a replay cannot repeat");
    }
    const auto given = std::ranges::count_if(outputs, [&](const at::Tensor& output) {
      return output.defined() && output.has_storage() &&
             output.storage().unsafeGetStorageImpl() == storage.get();
    });
    // One reference is the lock above.
    if (memory.origin == MemoryOrigin::kResult &&
        storage.use_count() > 1 + static_cast<size_t>(given)) {
      current_op_ = memory.node >= 0 && memory.node < builder_.nodes()
                        ? builder_.def().nodes(static_cast<int>(memory.node)).op()
                        : "";
      refuse(
          "its result outlives the function other than by being returned: the program keeps it (in "
          "a member, a captured variable or a list), and a replay would not renew it. Return it "
          "and keep what the call returns, or keep it in a tr::Variable");
    }
  }
  Captured captured;
  for (VariableUse& use : variables_) {
    captured.variables.push_back(use.record);
    captured.variables_before.push_back(use.before);
    captured.variables_after.push_back(use.scratch.detach());
  }
  // A tensor that is gone by now was made in the step without an operator, like the tensor of a C++
  // number. It cannot change any more, unless its memory is the program's.
  std::erase_if(externals_, [this](const ExternalTensor& external) {
    const bool gone = external.storage.use_count() == 0;
    if (gone && external.borrowed) {
      refuse(
          "it makes a tensor of the program's memory with from_blob(), and replays would go on "
          "with the numbers of the capture. Pass the tensor as an argument, or make it outside of "
          "the function; for constants use torch::tensor()");
    }
    return gone;
  });
  captured.externals = std::move(externals_);
  for (auto& [address, object] : external_objects_) {
    if (object.use_count() > 0) captured.external_objects.push_back(std::move(object));
  }
  captured.inputs = std::move(inputs_);
  captured.outputs = std::move(outputs);
  captured.graph = builder_.finish();
  return captured;
}

}  // namespace trireme::internal
