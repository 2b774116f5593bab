#include "trireme/checkpoint/checkpoint_reader.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/aligned_buffer.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/safetensors_header.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kReadBytes = uint64_t{4} << 20;

absl::Status damaged_file(const std::string& path, const std::string& text) {
  return make_status(ErrorCode::kDataLoss, absl::StrCat("file '", path, "' is damaged: ", text,
                                                        "; use another checkpoint"));
}

absl::StatusOr<Manifest> read_manifest(Files& files, const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  absl::StatusOr<std::string> text = files.read_text(path, kMostManifestBytes);
  if (!text.ok() && error_code(text.status()) == ErrorCode::kNotFound) {
    return make_status(ErrorCode::kNotFound,
                       absl::StrCat("'", folder, "' is not a checkpoint: it has no file ",
                                    kManifestName, ", which a save writes last"));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = parse_manifest(*text);
  if (manifest.ok()) return manifest;
  return make_status(error_code(manifest.status()),
                     absl::StrCat("cannot read '", path, "': ", manifest.status().message()));
}

// Checks the bytes of a file's tensors, which come in order and in parts.
class TensorChecker {
 public:
  TensorChecker(std::string path, uint64_t header_bytes, std::vector<TensorOfManifest> tensors)
      : path_(std::move(path)), at_(0), data_(header_bytes), tensors_(std::move(tensors)) {}

  absl::Status add(const char* data, uint64_t bytes) {
    while (bytes > 0) {
      while (at_ >= data_ && tensors_[next_].tensor->bytes == 0) ++next_;
      const bool header = at_ < data_;
      const uint64_t end =
          header ? data_ : tensors_[next_].tensor->offset + tensors_[next_].tensor->bytes;
      const uint64_t part = std::min(bytes, end - at_);
      if (!header) crc_ = crc32c(data, part, crc_);
      data += part;
      at_ += part;
      bytes -= part;
      if (header || at_ != end) continue;
      if (crc_ != tensors_[next_].tensor->crc) {
        return damaged_tensor(path_, tensors_[next_].tensor->name);
      }
      crc_ = 0;
      ++next_;
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  uint64_t at_;          // Offset of the next byte.
  const uint64_t data_;  // Offset of the first tensor.
  const std::vector<TensorOfManifest> tensors_;
  size_t next_ = 0;  // Tensor that the next byte belongs to.
  uint32_t crc_ = 0;
};

// Splits the tensors of a manifest by file.
std::vector<std::vector<TensorOfManifest>> tensors_by_file(const Manifest& manifest) {
  std::vector<std::vector<TensorOfManifest>> by_file(manifest.files.size());
  for (const TensorOfManifest& entry : tensors_of(manifest)) {
    by_file[static_cast<size_t>(entry.tensor->file)].push_back(entry);
  }
  return by_file;
}

}  // namespace

CheckpointReader::CheckpointReader(std::string path, Manifest manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::open(Files& files,
                                                                         const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(Manifest manifest, read_manifest(files, path));
  auto reader = std::unique_ptr<CheckpointReader>(new CheckpointReader(path, std::move(manifest)));
  const auto tensors = tensors_by_file(reader->manifest_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SavedFile& file = reader->manifest_.files[i];
    absl::StatusOr<std::unique_ptr<InputFile>> input = files.open(reader->path_of(file));
    if (!input.ok() && error_code(input.status()) == ErrorCode::kNotFound) {
      return damaged_file(reader->path_of(file), "it does not exist");
    }
    if (!input.ok()) return input.status();
    TRIREME_RETURN_IF_ERROR(reader->check_file(file, **input, tensors[i]));
    reader->files_.push_back(*std::move(input));
  }
  return reader;
}

absl::Status CheckpointReader::check_file(const SavedFile& file, InputFile& input,
                                          const std::vector<TensorOfManifest>& tensors) const {
  const std::string path = path_of(file);
  if (input.size() != file.bytes) {
    return damaged_file(path,
                        absl::StrCat("it has ", input.size(), " bytes instead of ", file.bytes));
  }
  std::string text(file.header_bytes, 0);
  TRIREME_RETURN_IF_ERROR(input.read(0, text.data(), text.size()));
  if (crc32c(text.data(), text.size()) != file.header_crc) {
    return damaged_file(path, "the checksum of its header differs");
  }
  absl::StatusOr<SafetensorsHeader> header = parse_safetensors_header(text, file.bytes);
  if (!header.ok()) return damaged_file(path, std::string(header.status().message()));
  bool same = header->tensors.size() == tensors.size();
  for (size_t i = 0; same && i < tensors.size(); ++i) {
    const SafetensorsEntry expected = {tensors[i].tensor->name, tensors[i].variable->dtype,
                                       tensors[i].variable->sizes_of_rows(tensors[i].shard->count),
                                       tensors[i].tensor->offset,
                                       tensors[i].tensor->offset + tensors[i].tensor->bytes};
    same = header->tensors[i] == expected;
  }
  return same ? absl::OkStatus() : damaged_file(path, "its tensors are not those of the manifest");
}

absl::StatusOr<at::Tensor> CheckpointReader::read(const SavedVariable& variable) const {
  return read_slot(variable, -1);
}

absl::StatusOr<at::Tensor> CheckpointReader::read_slot(const SavedVariable& variable,
                                                       int slot) const {
  if (slot >= static_cast<int>(variable.slots.size())) {
    return invalid_argument(absl::StrCat("variable '", variable.name, "' has no slot ", slot));
  }
  TRIREME_ASSIGN_OR_RETURN(const at::Tensor tensor, try_call([&] {
                             return at::empty(variable.sizes,
                                              at::device(at::kCPU).dtype(variable.dtype));
                           }));
  std::vector<PieceCrc> crcs;
  for (const ReadPiece& piece : pieces_for(variable, slot, 0, variable.rows())) {
    char* to = static_cast<char*>(tensor.mutable_data_ptr()) + piece.to;
    uint32_t crc = 0;
    // The checksum is computed while a part is still in the cache.
    for (uint64_t done = 0; done < piece.bytes;) {
      const uint64_t part = std::min(kReadBytes / 16, piece.bytes - done);
      TRIREME_RETURN_IF_ERROR(
          files_[static_cast<size_t>(piece.file)]->read(piece.offset + done, to + done, part));
      crc = crc32c(to + done, part, crc);
      done += part;
    }
    crcs.push_back({piece.file, piece.offset, piece.bytes, crc});
  }
  if (const absl::Status status = check_pieces(manifest_, std::move(crcs)); !status.ok()) {
    return make_status(error_code(status), absl::StrCat("cannot read the checkpoint '", path_,
                                                        "': ", status.message()));
  }
  return tensor;
}

absl::Status CheckpointReader::verify(const Progress& progress) const {
  uint64_t total = 0, done = 0, longest = 0;
  for (const SavedFile& file : manifest_.files) {
    total += file.bytes;
    longest = std::max(longest, file.bytes);
  }
  TRIREME_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                           AlignedBuffer::make(std::min(longest, kReadBytes)));
  auto tensors = tensors_by_file(manifest_);
  for (size_t i = 0; i < files_.size(); ++i) {
    const SavedFile& file = manifest_.files[i];
    TensorChecker checker(path_of(file), file.header_bytes, std::move(tensors[i]));
    for (uint64_t at = 0; at < file.bytes; at += kReadBytes) {
      const uint64_t bytes = std::min(kReadBytes, file.bytes - at);
      TRIREME_RETURN_IF_ERROR(files_[i]->read(at, buffer.data(), bytes));
      TRIREME_RETURN_IF_ERROR(checker.add(buffer.data(), bytes));
      done += bytes;
      if (progress) progress(done, total);
    }
  }
  return absl::OkStatus();
}

std::string CheckpointReader::path_of(const SavedFile& file) const {
  return join_path(path_, file.name);
}

}  // namespace trireme::internal
