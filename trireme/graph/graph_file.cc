#include "trireme/graph/graph_file.h"

#include <ATen/ops/as_strided.h>
#include <google/protobuf/stubs/logging.h>
#include <torch/version.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/codec.h"

namespace trireme::internal {
namespace {

constexpr char kMagic[] = "trgraph1";
constexpr size_t kMagicSize = 8;
constexpr size_t kHeadSize = kMagicSize + sizeof(uint64_t);
constexpr uint64_t kMaxProtobufBytes = 256 << 20;

// Returns the number of elements in the range of memory that a tensor of this type covers, gaps
// included; -1 if no such tensor can exist. The type may come from an untrusted peer, so overflow
// is checked.
int64_t covered_elements(const proto::TensorType& type) {
  if (type.sparse() || type.sizes_size() != type.strides_size()) return -1;
  int64_t last = 0;
  bool empty = false;
  for (int i = 0; i < type.sizes_size(); ++i) {
    const int64_t size = type.sizes(i), stride = type.strides(i);
    int64_t reach;
    if (size < 0 || stride < 0) return -1;
    empty |= size == 0;
    if (size > 0 && (__builtin_mul_overflow(size - 1, stride, &reach) ||
                     __builtin_add_overflow(last, reach, &last))) {
      return -1;
    }
  }
  return empty ? 0 : last + 1;
}

// Turns each row back into a tensor with the shape and strides that the graph declares.
absl::Status restore_constant_shapes(const proto::GraphDef& def,
                                     std::vector<at::Tensor>& constants) {
  if (static_cast<int>(constants.size()) != def.constants_size()) {
    return invalid_argument(absl::StrCat("the graph names ", def.constants_size(),
                                         " constants, but ", constants.size(), " came with it"));
  }
  for (int i = 0; i < def.constants_size(); ++i) {
    const proto::Constant& described = def.constants(i);
    at::Tensor& constant = constants[i];
    // The row has exactly the elements that the declared shape and strides reach, so as_strided()
    // below stays inside of it.
    if (static_cast<int>(constant.scalar_type()) != described.type().dtype() ||
        constant.dim() != 1 || constant.numel() != covered_elements(described.type())) {
      return invalid_argument(
          absl::StrCat("constant ", i,
                       " does not have the dtype and number of elements that the graph declares"));
    }
    const auto& type = described.type();
    const std::vector<int64_t> sizes(type.sizes().begin(), type.sizes().end()),
        strides(type.strides().begin(), type.strides().end());
    constant = at::as_strided(constant, sizes, strides, 0);
    if (!described.wrapped_number()) continue;
    if (constant.dim() != 0) {
      return invalid_argument(
          absl::StrCat("constant ", i, " is marked as a number, but has dimensions"));
    }
    constant.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return absl::OkStatus();
}

// Returns "2.13" for "2.13.1". Operators and their schemas may change between minor versions.
std::string major_minor_version(const std::string& version) {
  const size_t dot = version.find('.');
  const size_t second = dot == std::string::npos ? dot : version.find('.', dot + 1);
  return version.substr(0, second);
}

}  // namespace

std::vector<at::Tensor> constant_rows(const GraphData& graph) {
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    const int64_t covered = covered_elements(graph.def.constants(static_cast<int>(i)).type());
    const at::Tensor& constant = graph.constants[i];
    rows.push_back(at::as_strided(constant, {covered}, {1}, constant.storage_offset()));
  }
  return rows;
}

absl::StatusOr<std::shared_ptr<const GraphData>> assemble_graph(proto::GraphDef def,
                                                                std::vector<at::Tensor> rows) {
  if (major_minor_version(def.torch_version()) != major_minor_version(TORCH_VERSION)) {
    return make_status(
        ErrorCode::kVersionMismatch,
        absl::StrCat("the graph was captured with LibTorch ", def.torch_version(),
                     ", but this process runs LibTorch ", TORCH_VERSION, "; capture it again"));
  }
  auto graph = std::make_shared<GraphData>();
  graph->def = std::move(def);
  graph->constants = std::move(rows);
  TRIREME_RETURN_IF_ERROR(restore_constant_shapes(graph->def, graph->constants));
  return std::shared_ptr<const GraphData>(std::move(graph));
}

Fingerprint fingerprint_of(const std::string& body, const std::vector<at::Tensor>& tensors) {
  Fingerprint hashes{std::hash<std::string_view>()(body), absl::HashOf(body)};
  for (const at::Tensor& tensor : tensors) {
    const std::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()),
                                 tensor.nbytes());
    hashes = {absl::HashOf(hashes.first, std::hash<std::string_view>()(bytes)),
              absl::HashOf(hashes.second, bytes)};
  }
  return hashes;
}

absl::StatusOr<std::string> encode_graph(const GraphData& graph) {
  const std::vector<at::Tensor> rows = constant_rows(graph);
  TRIREME_ASSIGN_OR_RETURN(const std::string tensors, encode_tensors(rows));
  const std::string def = graph.def.SerializeAsString();
  const uint64_t length = def.size();
  std::string bytes(kMagic, kMagicSize);
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  return absl::StrCat(bytes, def, tensors);
}

absl::StatusOr<std::shared_ptr<const GraphData>> decode_graph(const std::string& bytes) {
  if (bytes.size() < kHeadSize || std::memcmp(bytes.data(), kMagic, kMagicSize) != 0) {
    return invalid_argument("this is not a graph file (it does not begin with 'trgraph1')");
  }
  uint64_t length;
  std::memcpy(&length, bytes.data() + kMagicSize, sizeof length);
  if (length > kMaxProtobufBytes || length > bytes.size() - kHeadSize) {
    return invalid_argument(absl::StrCat("the graph claims ", length, " bytes, but ",
                                         bytes.size() - kHeadSize, " follow; at most ",
                                         kMaxProtobufBytes, " are allowed"));
  }
  proto::GraphDef def;
  const google::protobuf::LogSilencer silencer;  // the error below replaces protobuf's log line
  if (!def.ParseFromArray(bytes.data() + kHeadSize, static_cast<int>(length))) {
    return invalid_argument("the graph's protobuf cannot be read: the file is damaged");
  }
  // The tensors cannot have more bytes than the file, whatever their headers claim.
  TensorLimits limits;
  limits.max_bytes = bytes.size();
  TRIREME_ASSIGN_OR_RETURN(std::vector<at::Tensor> rows,
                           decode_tensors(bytes.substr(kHeadSize + length), limits));
  return assemble_graph(std::move(def), std::move(rows));
}

absl::Status save_graph_file(const GraphData& graph, const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(const std::string bytes, encode_graph(graph));
  return write_file(path, bytes);
}

absl::StatusOr<std::shared_ptr<const GraphData>> load_graph_file(const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(const std::string bytes, read_file(path));
  auto graph = decode_graph(bytes);
  if (!graph.ok()) return with_origin(graph.status(), {"", absl::StrCat("file '", path, "'")});
  return graph;
}

absl::StatusOr<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return make_status(ErrorCode::kNotFound, absl::StrCat("cannot read file '", path, "'"));
  }
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

absl::Status write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) {
    return make_status(ErrorCode::kUnavailable, absl::StrCat("cannot write file '", path, "'"));
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
