#include "trireme/ps/load_call.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/aligned_buffer.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/ps/call_slices.h"
#include "trireme/ps/checkpoint_folder.h"
#include "trireme/ps/saves.pb.h"

// The pieces of a request are sorted by their place in the files and read in blocks of 4 MiB, so
// that many small tensors that lie next to each other take one read. A block begins at a multiple
// of kDirectBlock, as direct access needs. Two threads take blocks in turn: one copies and computes
// checksums while the disk works for the other.
namespace trireme::internal {
namespace {

constexpr uint64_t kReadBytes = 4 << 20;

// Bytes of a file that go to one variable.
struct LoadedPiece {
  StoredVariable* variable = nullptr;
  int slot = -1;
  size_t file = 0;
  uint64_t offset = 0, bytes = 0, to = 0;
};

// Bytes of a piece that lie within one block.
struct LoadedPart {
  size_t piece = 0;
  uint64_t at = 0;  // offset in the piece
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

struct LoadedBlock {
  size_t file = 0;
  uint64_t begin = 0, end = 0;  // offsets in the file
  size_t first = 0, last = 0;   // parts [first, last)
};

class LoadCall {
 public:
  LoadCall(VariableStore& store, Files& files) : store_(store), files_(files) {}

  // Checks the request and opens the files.
  absl::Status prepare(const std::string& checkpoint_root, const LoadRequest& request);
  // Reads everything.
  absl::Status run();
  LoadResponse response() const;

 private:
  absl::Status prepare_target(const LoadRequest& request, const LoadRequest::Target& target,
                              const std::shared_ptr<StoredVariable>& variable);
  absl::Status add_piece(const LoadRequest::Piece& piece, uint64_t target_bytes,
                         LoadedPiece loaded);
  void cut_into_blocks();
  absl::Status read_blocks();

  VariableStore& store_;
  Files& files_;
  std::vector<std::shared_ptr<StoredVariable>> variables_;
  std::string folder_;
  std::vector<std::unique_ptr<InputFile>> inputs_;  // null if no piece uses the file
  std::vector<LoadedPiece> pieces_;
  std::vector<std::pair<StoredVariable*, double>> steps_;
  std::vector<LoadedPart> parts_;
  std::vector<LoadedBlock> blocks_;
  std::atomic<size_t> next_ = 0;
};

absl::Status LoadCall::prepare(const std::string& checkpoint_root, const LoadRequest& request) {
  std::vector<uint64_t> handles;
  for (const auto& target : request.targets()) handles.push_back(target.handle());
  TRIREME_ASSIGN_OR_RETURN(variables_, store_.lookup(to_scope(request.scope()), handles));
  TRIREME_ASSIGN_OR_RETURN(folder_, resolve_folder(checkpoint_root, request.directory()));
  inputs_.resize(request.files_size());
  for (int i = 0; i < request.targets_size(); ++i) {
    TRIREME_RETURN_IF_ERROR(prepare_target(request, request.targets(i), variables_[i]));
  }
  cut_into_blocks();
  return absl::OkStatus();
}

absl::Status LoadCall::prepare_target(const LoadRequest& request, const LoadRequest::Target& target,
                                      const std::shared_ptr<StoredVariable>& variable) {
  LoadedPiece loaded{variable.get()};
  if (target.has_slot() || target.has_step()) {
    const StoredVariable::SavedOptimizer optimizer = variable->saved_optimizer();
    const std::string rule = optimizer.rule == nullptr ? "none" : optimizer.rule->name();
    if (rule != target.rule()) {
      return make_status(ErrorCode::kFailedPrecondition,
                         absl::StrCat("the checkpoint has the state of the optimizer ",
                                      target.rule(), ", but its optimizer on the server is ", rule),
                         variable->object());
    }
    if (target.has_slot() && target.slot() >= optimizer.slots.size()) {
      return malformed_request(absl::StrCat("slot ", target.slot(), " of ", rule));
    }
    if (target.has_slot()) loaded.slot = static_cast<int>(target.slot());
  }
  if (target.has_step()) {
    if (!std::isfinite(target.step()) || target.step() < 0) {
      return malformed_request(absl::StrCat("an optimizer after ", target.step(), " updates"));
    }
    steps_.emplace_back(variable.get(), target.step());
  }
  for (const auto& piece : target.pieces()) {
    if (piece.file() >= inputs_.size()) {
      return malformed_request(absl::StrCat("file ", piece.file(), " of ", inputs_.size()));
    }
    auto& input = inputs_[piece.file()];
    if (input == nullptr) {
      TRIREME_ASSIGN_OR_RETURN(
          input, open_in_folder(files_, folder_, request.files(static_cast<int>(piece.file()))));
    }
    // A slot has as many bytes as the contents.
    TRIREME_RETURN_IF_ERROR(add_piece(piece, variable->tensor.nbytes(), loaded));
  }
  return absl::OkStatus();
}

absl::Status LoadCall::add_piece(const LoadRequest::Piece& piece, uint64_t target_bytes,
                                 LoadedPiece loaded) {
  const uint64_t file_bytes = inputs_[piece.file()]->size();
  // Subtractions cannot overflow here; sums could.
  if (piece.bytes() == 0 || piece.bytes() > target_bytes ||
      piece.to() > target_bytes - piece.bytes()) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat(piece.bytes(), " bytes at ", piece.to(),
                                    " do not lie within its ", target_bytes, " bytes"),
                       loaded.variable->object());
  }
  if (piece.bytes() > file_bytes || piece.offset() > file_bytes - piece.bytes()) {
    return make_status(ErrorCode::kDataLoss,
                       absl::StrCat("the file has ", file_bytes, " bytes, but ", piece.bytes(),
                                    " bytes at ", piece.offset(), " are needed"),
                       loaded.variable->object());
  }
  loaded.file = piece.file();
  loaded.offset = piece.offset();
  loaded.bytes = piece.bytes();
  loaded.to = piece.to();
  pieces_.push_back(loaded);
  return absl::OkStatus();
}

void LoadCall::cut_into_blocks() {
  std::vector<size_t> order(pieces_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {},
                    [&](size_t i) { return std::tuple(pieces_[i].file, pieces_[i].offset, i); });
  for (const size_t i : order) {
    const LoadedPiece& piece = pieces_[i];
    for (uint64_t at = 0; at < piece.bytes;) {
      const uint64_t offset = piece.offset + at;
      const bool fits = !blocks_.empty() && blocks_.back().file == piece.file &&
                        offset >= blocks_.back().begin &&
                        offset < blocks_.back().begin + kReadBytes;
      if (!fits) {
        const uint64_t begin = offset / kDirectBlock * kDirectBlock;
        blocks_.push_back({piece.file, begin, begin, parts_.size(), parts_.size()});
      }
      LoadedBlock& block = blocks_.back();
      const uint64_t bytes = std::min(piece.bytes - at, block.begin + kReadBytes - offset);
      parts_.push_back({i, at, bytes});
      block.last = parts_.size();
      block.end = std::max(block.end, offset + bytes);
      at += bytes;
    }
  }
}

absl::Status LoadCall::read_blocks() {
  TRIREME_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::make(kReadBytes));
  for (size_t i = next_++; i < blocks_.size(); i = next_++) {
    const LoadedBlock& block = blocks_[i];
    InputFile& input = *inputs_[block.file];
    const uint64_t end = std::min(whole_direct_blocks(block.end), input.size());
    TRIREME_RETURN_IF_ERROR(input.read(block.begin, buffer.data(), end - block.begin));
    for (size_t j = block.first; j < block.last; ++j) {
      LoadedPart& part = parts_[j];
      const LoadedPiece& piece = pieces_[part.piece];
      const char* data = buffer.data() + (piece.offset + part.at - block.begin);
      part.crc = crc32c(data, part.bytes);
      piece.variable->overwrite(piece.slot, piece.to + part.at, data, part.bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status LoadCall::run() {
  const auto work = [this] { return try_call([this] { throw_if_error(read_blocks()); }); };
  absl::Status of_helper;
  std::thread helper;
  if (blocks_.size() > 1) helper = std::thread([&] { of_helper = work(); });
  absl::Status status = work();
  if (!status.ok()) next_ = blocks_.size();
  if (helper.joinable()) helper.join();
  status.Update(of_helper);
  TRIREME_RETURN_IF_ERROR(status);
  for (const auto& [variable, step] : steps_) variable->set_step(step);
  return absl::OkStatus();
}

LoadResponse LoadCall::response() const {
  LoadResponse response;
  response.mutable_crcs()->Resize(static_cast<int>(pieces_.size()), crc32c(nullptr, 0));
  // The parts of a piece are in the order of their offsets.
  for (const LoadedPart& part : parts_) {
    uint32_t& crc = (*response.mutable_crcs())[static_cast<int>(part.piece)];
    crc = crc32c_combine(crc, part.crc, part.bytes);
  }
  return response;
}

}  // namespace

void serve_load(VariableStore& store, Files& files, const std::string& checkpoint_root,
                ServerCall call) {
  call.respond([&]() -> absl::StatusOr<Message> {
    TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<LoadRequest>(call.request()));
    LoadCall load(store, files);
    TRIREME_RETURN_IF_ERROR(disk_error(load.prepare(checkpoint_root, request)));
    TRIREME_RETURN_IF_ERROR(disk_error(load.run()));
    return make_message(load.response());
  }());
}

}  // namespace trireme::internal
