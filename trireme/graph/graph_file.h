#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/graph/plan.h"

// Graphs in files and on the wire. The format of a file:
//
//   8 bytes   "trgraph1"
//   u64       length of the protobuf, little-endian
//   protobuf  GraphDef
//   tensors   the constants as constant_rows() returns them, encoded by the tensor codec
namespace trireme::internal {

// Returns each constant as a one-dimensional tensor: the contiguous range of memory that its
// elements cover. The protobuf has the shapes and strides to restore it.
std::vector<at::Tensor> constant_rows(const GraphData& graph);
// Restores a graph from its protobuf and its rows, which may come from an untrusted peer. Checks
// only the LibTorch version and the constants; the result must still be compiled.
absl::StatusOr<std::shared_ptr<const GraphData>> assemble_graph(proto::GraphDef def,
                                                                std::vector<at::Tensor> rows);

// Identifies a body and the tensors beside it by two different hashes of their bytes.
using Fingerprint = std::pair<size_t, size_t>;
// Returns the fingerprint. The tensors must be contiguous.
Fingerprint fingerprint_of(const std::string& body, const std::vector<at::Tensor>& tensors);

// Encodes a graph in the format above.
absl::StatusOr<std::string> encode_graph(const GraphData& graph);
// Decodes bytes that may come from an untrusted peer. The result must still be compiled.
absl::StatusOr<std::shared_ptr<const GraphData>> decode_graph(const std::string& bytes);

absl::Status save_graph_file(const GraphData& graph, const std::string& path);
// Reads and decodes a file. The result must still be compiled.
absl::StatusOr<std::shared_ptr<const GraphData>> load_graph_file(const std::string& path);

absl::StatusOr<std::string> read_file(const std::string& path);
absl::Status write_file(const std::string& path, const std::string& bytes);

}  // namespace trireme::internal
