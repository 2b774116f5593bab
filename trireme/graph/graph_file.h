#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/graph/plan.h"

// Graphs in files and on the wire:
//
//   8 bytes   "trgraph1"
//   u64       length of the protobuf, little-endian
//   protobuf  GraphDef
//   tensors   the constants, by the tensor codec, each as the one row of memory that it covers
namespace trireme::internal {

// The constants as they travel: each as the one row of memory that it covers. And back, from rows
// that anybody may have sent; what it returns still has to be compiled.
std::vector<at::Tensor> constant_rows(const GraphData& graph);
absl::StatusOr<std::shared_ptr<const GraphData>> assemble_graph(proto::GraphDef def,
                                                                std::vector<at::Tensor> rows);

// Tells what travels apart: two hashes of a body and of the contiguous tensors beside it.
using Content = std::pair<size_t, size_t>;
Content content_of(const std::string& body, const std::vector<at::Tensor>& tensors);

absl::StatusOr<std::string> encode_graph(const GraphData& graph);
// Reads bytes that anybody may have written. What it returns still has to be compiled.
absl::StatusOr<std::shared_ptr<const GraphData>> decode_graph(const std::string& bytes);

absl::Status save_graph_file(const GraphData& graph, const std::string& path);
absl::StatusOr<std::shared_ptr<const GraphData>> load_graph_file(const std::string& path);

absl::StatusOr<std::string> read_file(const std::string& path);
absl::Status write_file(const std::string& path, const std::string& bytes);

}  // namespace trireme::internal
