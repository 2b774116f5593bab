#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// What is known about single operators beyond their schemas, in one place.
namespace trireme::internal {

// "aten::add.Tensor"; the form in which graphs name operators and errors show them.
std::string operator_name(const c10::OperatorHandle& op);

// Returns true for an operator that is made of others, which a capture records instead.
bool is_composite(const c10::OperatorHandle& op);

// Finds an operator that a graph may name. The error tells an operator that does not exist from
// one that exists and is not on the list: those that touch files, processes or the network, that
// take raw storages or streams, or that nobody has looked at yet.
absl::StatusOr<c10::OperatorHandle> find_allowed_operator(const std::string& name);
bool is_allowed_operator(const std::string& name);
// The full names of all operators that a graph may name, sorted; our own as far as this process has
// registered them.
std::vector<std::string> allowed_operators();

// Draws random numbers: from a generator argument where it has one, else from the default one.
bool is_random(const c10::OperatorHandle& op);
// The position of the generator argument, or -1.
int generator_argument(const c10::OperatorHandle& op);

// The overload of a random operator that takes a generator too, and otherwise the same arguments:
// `rand.generator` for `rand`.
std::optional<c10::OperatorHandle> overload_with_generator(const c10::OperatorHandle& op);

// The arguments (by position) that this call writes to: those that the schema marks, and those
// of a kept list of operators whose schemas do not tell.
std::vector<int> written_arguments(const c10::OperatorHandle& op,
                                   c10::ArrayRef<c10::IValue> arguments);
// As above without the arguments' values: all that some call may write to.
std::vector<int> writable_arguments(const c10::OperatorHandle& op);

// Returns true if a result may share memory with an argument: the schema gives both an alias, or
// the operator is on a kept list of those that return an argument's memory without declaring it.
bool may_share_memory(const c10::OperatorHandle& op, size_t argument, size_t result);

// Returns true for an operator that gives its first argument another shape. It must run on an
// alias.
bool changes_shape(const c10::OperatorHandle& op);

// Returns true for an operator that may get an undefined tensor where its schema asks for a tensor.
bool takes_undefined(const c10::OperatorHandle& op);

// Returns true for a result that holds, in places that its kernel alone knows, what memory held
// before: oneDNN's record of an LSTM's forward pass. Nothing but an argument that takes_record()
// may see it.
bool is_record(const c10::OperatorHandle& op, size_t result);
bool takes_record(const c10::OperatorHandle& op, size_t argument);

// Leaves memory as it found it, so that its result has no contents yet.
bool makes_uninitialized(const c10::OperatorHandle& op);

// Reads nothing but shapes, dtypes and the like: its result is a fact of the signature.
bool reads_only_metadata(const c10::OperatorHandle& op);

// Its result, or its result's shape, follows from the contents of tensors, so that C++ code that
// saw it has become a constant of the graph.
bool is_data_dependent(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Our own operators (namespace trireme); done once, by whoever first looks one up.
void register_own_operators();

}  // namespace trireme::internal
