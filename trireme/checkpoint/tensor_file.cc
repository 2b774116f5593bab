#include "trireme/checkpoint/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "trireme/base/aligned_buffer.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/strict_json.h"

namespace trireme::internal {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;
// The checksum is computed over parts that are still in the cache after they were copied.
constexpr size_t kCachedBytes = size_t{256} << 10;

// Writes bytes one after the other in whole blocks that bypass the page cache.
class BlockWriter {
 public:
  BlockWriter(OutputFile& file, AlignedBuffer buffer) : file_(file), buffer_(std::move(buffer)) {}

  // Appends bytes and extends `crc` by them.
  absl::Status append(const void* data, uint64_t bytes, uint32_t& crc) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const size_t part = std::min<uint64_t>({bytes, kCachedBytes, buffer_.size() - filled_});
      std::memcpy(buffer_.data() + filled_, from, part);
      crc = crc32c(buffer_.data() + filled_, part, crc);
      from += part;
      bytes -= part;
      filled_ += part;
      if (filled_ == buffer_.size()) TRIREME_RETURN_IF_ERROR(write_block());
    }
    return absl::OkStatus();
  }

  // Writes the last block, padded, and cuts the padding off.
  absl::Status finish() {
    const uint64_t bytes = written_ + filled_;
    if (filled_ > 0) {
      const size_t padded = whole_direct_blocks(filled_);
      std::memset(buffer_.data() + filled_, 0, padded - filled_);
      filled_ = padded;
      TRIREME_RETURN_IF_ERROR(write_block());
    }
    return file_.finish(bytes);
  }

 private:
  absl::Status write_block() {
    TRIREME_RETURN_IF_ERROR(file_.write(written_, buffer_.data(), filled_));
    written_ += filled_;
    filled_ = 0;
    return absl::OkStatus();
  }

  OutputFile& file_;
  AlignedBuffer buffer_;
  size_t filled_ = 0;     // Bytes in the buffer.
  uint64_t written_ = 0;  // Bytes in the file.
};

absl::StatusOr<WrittenFile> write_layout(OutputFile& file, const std::string& path,
                                         const TensorFileLayout& layout) {
  WrittenFile result;
  result.file = layout.file(path.substr(path.rfind('/') + 1));
  result.tensors.resize(layout.tensors().size());
  TRIREME_ASSIGN_OR_RETURN(
      AlignedBuffer buffer,
      AlignedBuffer::make(std::min<uint64_t>(kBlockBytes, std::max<uint64_t>(layout.bytes(), 1))));
  BlockWriter writer(file, std::move(buffer));
  uint32_t header_crc = 0;
  TRIREME_RETURN_IF_ERROR(
      writer.append(layout.header().data(), layout.header().size(), header_crc));
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const TensorToSave& tensor = layout.tensors()[i];
    SavedTensor& saved = result.tensors[layout.given(i)];
    saved.name = tensor.name;
    saved.offset = layout.offset(i);
    saved.bytes = tensor.bytes;
    TRIREME_RETURN_IF_ERROR(writer.append(tensor.data, tensor.bytes, saved.crc));
  }
  TRIREME_RETURN_IF_ERROR(writer.finish());
  return result;
}

}  // namespace

absl::Status check_tensors(const std::vector<TensorToSave>& tensors) {
  std::set<std::string> names;
  for (const TensorToSave& tensor : tensors) {
    const auto fault = [&](const std::string& text) {
      return invalid_argument(absl::StrCat("cannot save tensor '", tensor.name, "': ", text));
    };
    if (tensor.name.empty() || tensor.name == "__metadata__" || !is_utf8(tensor.name)) {
      return fault("this is not a valid name in a safetensors file");
    }
    if (!names.insert(tensor.name).second) return fault("there are two tensors with this name");
    if (safetensors_dtype(tensor.dtype).empty()) {
      return fault(absl::StrCat("safetensors files have no dtype ", c10::toString(tensor.dtype)));
    }
    uint64_t bytes = c10::elementSize(tensor.dtype);
    for (const int64_t size : tensor.sizes) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
        return fault("its sizes are not valid");
      }
    }
    if (bytes != tensor.bytes) return fault("its length does not belong to its sizes");
  }
  return absl::OkStatus();
}

TensorFileLayout::TensorFileLayout(std::vector<TensorToSave> tensors) {
  given_.resize(tensors.size());
  std::iota(given_.begin(), given_.end(), size_t{0});
  std::sort(given_.begin(), given_.end(), [&](size_t a, size_t b) {
    const size_t left = c10::elementSize(tensors[a].dtype);
    const size_t right = c10::elementSize(tensors[b].dtype);
    return left != right ? left > right : tensors[a].name < tensors[b].name;
  });
  std::vector<SafetensorsEntry> entries;
  uint64_t end = 0;
  for (const size_t i : given_) {
    tensors_.push_back(std::move(tensors[i]));
    const TensorToSave& tensor = tensors_.back();
    offsets_.push_back(end);
    entries.push_back({tensor.name, tensor.dtype, tensor.sizes, end, end + tensor.bytes});
    end += tensor.bytes;
  }
  // Python's libraries look for the framework in the metadata.
  std::string json = safetensors_json(entries, {{"format", "pt"}});
  const size_t unpadded = kSafetensorsPrefix + json.size();
  json.append((kDirectBlock - unpadded % kDirectBlock) % kDirectBlock, ' ');
  for (size_t i = 0; i < kSafetensorsPrefix; ++i) {
    header_.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
  }
  header_ += json;
  for (uint64_t& offset : offsets_) offset += header_.size();
  bytes_ = header_.size() + end;
}

SavedFile TensorFileLayout::file(std::string name) const {
  return {std::move(name), bytes_, header_.size(), crc32c(header_.data(), header_.size())};
}

absl::StatusOr<WrittenFile> write_tensor_file(Files& files, const std::string& path,
                                              std::vector<TensorToSave> tensors) {
  TRIREME_RETURN_IF_ERROR(check_tensors(tensors));
  const TensorFileLayout layout(std::move(tensors));
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, files.create(path));
  absl::StatusOr<WrittenFile> result = write_layout(*file, path, layout);
  if (!result.ok()) {
    file.reset();
    files.remove(path).IgnoreError();  // The error above is the one to report.
  }
  return result;
}

absl::StatusOr<SafetensorsHeader> read_safetensors_header(InputFile& file,
                                                          const std::string& path) {
  std::string header(std::min<uint64_t>(file.size(), kSafetensorsPrefix), 0);
  TRIREME_RETURN_IF_ERROR(file.read(0, header.data(), header.size()));
  const auto named = [&](const absl::Status& status) {
    return make_status(error_code(status),
                       absl::StrCat("cannot read '", path, "': ", status.message()));
  };
  const absl::StatusOr<uint64_t> bytes = safetensors_header_bytes(header, file.size());
  if (!bytes.ok()) return named(bytes.status());
  header.resize(*bytes);
  TRIREME_RETURN_IF_ERROR(file.read(0, header.data(), header.size()));
  absl::StatusOr<SafetensorsHeader> result = parse_safetensors_header(header, file.size());
  if (!result.ok()) return named(result.status());
  return result;
}

}  // namespace trireme::internal
