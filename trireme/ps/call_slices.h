#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/stored_variable.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/message.h"

// Decodes the slices of variables that a pull or push names: each is a whole variable or some of
// its rows. All numbers come from the wire and are compared with what the message really carries.
namespace trireme::internal {

// Limit for the tensors of one call; the codec's limit for a message is the same.
inline constexpr uint64_t kMostCallBytes = uint64_t{64} << 30;

// Returns the error for a request that no client of ours sends.
absl::Status malformed_request(const std::string& what);

// Returns the scope that a request names.
VariableScope to_scope(const VariableScopeDef& proto);

// The number of rows of each variable of a call, or nullopt for the whole variable.
using RowCounts = std::vector<std::optional<int64_t>>;

// Decodes the `rows` field of a pull or push of `variables` variables. Fails if the message cannot
// have that many ids in the tensors that it carries.
absl::StatusOr<RowCounts> row_counts(const google::protobuf::RepeatedField<uint64_t>& field,
                                     size_t variables, const Message& message);

// Returns the shape of a list of row ids.
TensorShape ids_shape(int64_t count);

// Returns the shape of `rows` rows of a variable, or of the whole variable.
absl::StatusOr<TensorShape> slice_shape(const StoredVariable& variable,
                                        std::optional<int64_t> rows);

}  // namespace trireme::internal
