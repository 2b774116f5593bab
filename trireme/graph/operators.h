#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// Facts about single operators that their schemas do not state or state wrongly. All code that
// needs to know what an operator does asks here. Thread-safe.
namespace trireme::internal {

// Returns the full name, "aten::add.Tensor", by which graphs and errors name the operator.
std::string operator_name(const c10::OperatorHandle& op);

// Returns true for an operator that is made of others, which a capture records instead.
bool is_composite(const c10::OperatorHandle& op);

// Returns the operator with this full name if a graph may use it. Returns kNotFound for an operator
// that does not exist and kPermissionDenied for one that is not on the list: it may touch files,
// processes or the network, take raw storages or streams, or not have been examined yet.
absl::StatusOr<c10::OperatorHandle> find_allowed_operator(const std::string& name);
// Returns true if the name is on the list or is one of Trireme's own operators. Does not check that
// the operator exists.
bool is_allowed_operator(const std::string& name);
// Returns the full names of all operators that a graph may use, sorted. Trireme's own operators
// are included as far as this process has registered them.
std::vector<std::string> allowed_operators();

// Returns true for an operator that draws random numbers, from its generator argument if it has
// one, otherwise from the default generator.
bool is_random(const c10::OperatorHandle& op);
// Returns the position of the generator argument, or -1.
int generator_argument(const c10::OperatorHandle& op);

// Returns the overload of a random operator that takes a generator and otherwise the same
// arguments: `rand.generator` for `rand`. Returns nullopt if there is none or `op` takes one.
std::optional<c10::OperatorHandle> overload_with_generator(const c10::OperatorHandle& op);

// Returns the positions of the arguments that this call writes to: those that the schema marks,
// corrected for the few operators whose schemas are wrong.
std::vector<int> written_arguments(const c10::OperatorHandle& op,
                                   c10::ArrayRef<c10::IValue> arguments);
// Returns the positions of all arguments that some call of the operator may write to.
std::vector<int> writable_arguments(const c10::OperatorHandle& op);

// Returns true if a result may share memory with an argument: the schema gives both an alias, or
// the operator is known to return an argument's memory without declaring it.
bool may_share_memory(const c10::OperatorHandle& op, size_t argument, size_t result);

// Returns true for an operator that gives its first argument another shape. A replay must pass an
// alias of the argument, so that the value itself keeps its shape.
bool changes_shape(const c10::OperatorHandle& op);

// Returns true for an operator that may get an undefined tensor where its schema asks for a tensor.
bool takes_undefined(const c10::OperatorHandle& op);

// Returns true for a result that is oneDNN's workspace of an LSTM's forward pass. The kernel never
// writes some parts of it, and only oneDNN knows which, so it may expose what the memory held
// before. Only an argument for which takes_lstm_workspace() returns true may get it.
bool is_lstm_workspace(const c10::OperatorHandle& op, size_t result);
bool takes_lstm_workspace(const c10::OperatorHandle& op, size_t argument);

// Returns true for `empty` and its variants, whose results have no contents yet.
bool makes_uninitialized(const c10::OperatorHandle& op);

// Returns true for an operator that reads only shapes, dtypes and the like. Its result is the same
// for every call with the same signature.
bool reads_only_metadata(const c10::OperatorHandle& op);

// Returns true if the operator's result, or its shape, depends on the contents of tensors. If C++
// code looks at such a result, a capture would turn what it saw into a constant of the graph.
bool is_data_dependent(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Registers Trireme's own operators (namespace trireme) with LibTorch. The first call does the
// work; find_allowed_operator() and allowed_operators() call it.
void register_own_operators();

}  // namespace trireme::internal
