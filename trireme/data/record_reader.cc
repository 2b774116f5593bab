#include "trireme/data/record_reader.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/base/warn_once.h"

// Where one record ends is only known from those before it, so pieces are cut one after the other,
// under a lock: that is fast. Each thread cuts a piece, decodes it without the lock, and stores the
// block under the number of its piece. The consumer takes the blocks by number. A thread waits
// while it is kAhead pieces ahead of the consumer.
//
// skip() ends the threads first. Blocks that they have made are used; from there on, pieces are cut
// and not decoded.
namespace trireme::internal {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kMostRecordBytes = size_t{1} << 30;
constexpr int64_t kAhead = 2;  // pieces for each thread

std::atomic<uint64_t> left_out = 0;

// Whole records of a file in memory.
struct Piece {
  std::unique_ptr<char[]> memory;
  RawRecords raw;
};

// A decoded piece: records, and then perhaps an error. The block is null at the end of the file,
// and if there are no records before the error.
struct Decoded {
  BlockPtr block;
  absl::Status error;
};

// Returns a place for a message. `line` is 0 for files without lines.
std::string place_in_file(uint64_t offset, uint64_t line) {
  return line > 0 ? absl::StrCat("line ", line, " (byte ", offset, ")")
                  : absl::StrCat("byte ", offset);
}

// Cuts a file into pieces. Not thread-safe.
class PieceCutter {
 public:
  PieceCutter(std::shared_ptr<const RecordFormat> format, std::unique_ptr<InputFile> file,
              RecordReaderOptions options)
      : format_(std::move(format)), file_(std::move(file)), options_(std::move(options)) {}

  absl::Status read_head() {
    absl::StatusOr<RecordFormat::Whole> head = format_->read_head(*file_);
    if (!head.ok()) {
      return make_status(error_code(head.status()), std::string(head.status().message()), file());
    }
    offset_ = head->bytes;
    line_ = format_->has_lines() ? 1 + head->lines : 0;
    return absl::OkStatus();
  }
  // Returns the next piece, with at most `most` records, or nullopt at the end.
  absl::StatusOr<std::optional<Piece>> cut(int64_t most) {
    size_t capacity = kPieceBytes;
    while (!ended_ && offset_ < file_->size()) {
      const auto bytes = std::min<uint64_t>(capacity, file_->size() - offset_);
      Piece piece{std::unique_ptr<char[]>(new char[bytes]), {}};
      TRIREME_RETURN_IF_ERROR(file_->read(offset_, piece.memory.get(), bytes));
      const bool is_end = offset_ + bytes == file_->size();
      RecordFormat::Whole whole = format_->split({piece.memory.get(), bytes}, is_end, most);
      piece.raw = {{piece.memory.get(), whole.bytes}, offset_, line_, whole.records};
      offset_ += whole.bytes;
      line_ += whole.lines;
      if (whole.records > 0) return piece;
      if (whole.fault.empty() && whole.bytes == 0) {
        if (is_end) break;
        capacity *= 2;
        if (capacity > kMostRecordBytes) {
          whole.fault = absl::StrCat("a record has more than ", kMostRecordBytes / 2,
                                     " bytes; is this the right format?");
        }
      }
      if (whole.fault.empty()) continue;
      const std::string_view read(piece.memory.get(), bytes);
      TRIREME_RETURN_IF_ERROR(give_up(whole.fault, read.substr(whole.bytes)));
      capacity = kPieceBytes;
    }
    ended_ = true;
    return std::nullopt;
  }
  // Returns the error for a record that is not valid, or OK if it is to be left out.
  absl::Status bad(uint64_t offset, uint64_t line, const std::string& what) const {
    const std::string place = place_in_file(offset, line);
    if (!options_.skip_bad) {
      return make_status(ErrorCode::kDataLoss, absl::StrCat(place, ": ", what), file());
    }
    if (options_.bad != nullptr) options_.bad->add();
    if (left_out++ == 0) {
      log_warning("left out a record that is not valid: file '", options_.path, "', ", place, ": ",
                  what, "; further ones are counted only");
    }
    return absl::OkStatus();
  }
  // Decodes a piece up to the first record that is an error.
  Decoded decode(const Piece& piece) const {
    size_t bad_offset = 0;
    const auto note_bad = [&](size_t offset, uint64_t line, const std::string& what) {
      bad_offset = offset;
      return bad(piece.raw.offset + offset, line, what);
    };
    absl::StatusOr<BlockPtr> whole = format_->decode(piece.raw, note_bad);
    if (whole.ok()) return {*std::move(whole), absl::OkStatus()};
    const absl::Status error = with_origin(whole.status(), file());
    RawRecords before = piece.raw;
    before.bytes = before.bytes.substr(0, bad_offset);
    before.records = format_->split(before.bytes, /*is_end=*/true, before.records).records;
    if (before.records == 0) return {nullptr, error};
    absl::StatusOr<BlockPtr> block = format_->decode(before, note_bad);
    return {block.ok() ? *std::move(block) : nullptr, error};
  }
  bool skips_bad() const { return options_.skip_bad; }
  // Returns how many records are decoded at once at most.
  int64_t most_records() const { return options_.most_records; }
  Origin file() const { return {"", absl::StrCat("file '", options_.path, "'")}; }

 private:
  // Leaves out the record at the current place, or returns the error. `rest` begins with it. Its
  // end is not known. So reading continues at the next line, if the file has lines, and otherwise
  // the rest of the file is left out.
  absl::Status give_up(const std::string& fault, std::string_view rest) {
    ended_ = true;
    TRIREME_RETURN_IF_ERROR(bad(offset_, line_, fault));
    const size_t line_end = format_->has_lines() ? rest.find('\n') : std::string_view::npos;
    if (line_end == std::string_view::npos) {
      warn_once(absl::StrCat("left out the rest of the file '", options_.path, "' from ",
                             place_in_file(offset_, line_), ": ", fault));
      return absl::OkStatus();
    }
    ended_ = false;
    offset_ += line_end + 1;
    ++line_;
    return absl::OkStatus();
  }

  std::shared_ptr<const RecordFormat> format_;
  std::unique_ptr<InputFile> file_;
  RecordReaderOptions options_;
  uint64_t offset_ = 0, line_ = 1;  // of the next piece
  bool ended_ = false;
};

class RecordReader final : public BlockReader {
 public:
  RecordReader(PieceCutter cutter, int threads)
      : threads_wanted_(std::max(threads, 1)), cutter_(std::move(cutter)) {}
  ~RecordReader() override { stop(); }

  absl::StatusOr<BlockPtr> next() override {
    while (true) {
      TRIREME_ASSIGN_OR_RETURN(BlockPtr block, take());
      if (block == nullptr || block->rows > 0) return block;
    }
  }
  absl::StatusOr<int64_t> skip(int64_t count) override {
    stop();
    int64_t skipped = 0;
    while (skipped < count) {
      if (rest_ == nullptr) {
        TRIREME_RETURN_IF_ERROR(after_block_);
        // Only decoding shows which records are left out.
        const bool must_decode = has_blocks() || cutter_.skips_bad();
        if (!must_decode) {
          TRIREME_ASSIGN_OR_RETURN(const auto piece, cutter_.cut(count - skipped));
          if (!piece) break;
          skipped += piece->raw.records;
          continue;
        }
        TRIREME_ASSIGN_OR_RETURN(rest_, take_here());
        if (rest_ == nullptr) break;
      }
      const int64_t part = std::min(count - skipped, rest_->rows);
      skipped += part;
      rest_ = part == rest_->rows ? nullptr : without_first(*rest_, part);
    }
    return skipped;
  }

 private:
  static BlockPtr without_first(const Block& block, int64_t rows) {
    auto rest = std::make_shared<Block>();
    rest->rows = block.rows - rows;
    for (const BlockColumn& column : block.columns) {
      if (column.offsets.empty()) {
        rest->columns.push_back({column.values.narrow(0, rows, rest->rows), {}});
      } else {
        rest->columns.push_back(
            {column.values, {column.offsets.begin() + rows, column.offsets.end()}});
      }
    }
    return rest;
  }

  // Returns the next block, possibly without rows, or null at the end.
  absl::StatusOr<BlockPtr> take() {
    if (rest_ != nullptr) return std::exchange(rest_, nullptr);
    TRIREME_RETURN_IF_ERROR(after_block_);
    if (threads_.empty()) start();
    MutexLock lock(mutex_);
    while (!made_.contains(taken_)) {
      if (ended_ && taken_ >= cut_) return nullptr;
      changed_.wait(mutex_);
    }
    return take_made();
  }
  // Does the same without the threads.
  absl::StatusOr<BlockPtr> take_here() {
    {
      MutexLock lock(mutex_);
      if (made_.contains(taken_)) return take_made();
    }
    TRIREME_ASSIGN_OR_RETURN(const auto piece, cutter_.cut(cutter_.most_records()));
    if (!piece) return nullptr;
    return records_of(cutter_.decode(*piece));
  }
  absl::StatusOr<BlockPtr> take_made() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Decoded decoded = std::move(made_.extract(taken_).mapped());
    ++taken_;
    changed_.notify_all();
    return records_of(std::move(decoded));
  }
  // Returns the records of a piece, and keeps its error for the next call.
  absl::StatusOr<BlockPtr> records_of(Decoded decoded) {
    if (decoded.block == nullptr) TRIREME_RETURN_IF_ERROR(decoded.error);
    after_block_ = std::move(decoded.error);
    return std::move(decoded.block);
  }
  bool has_blocks() {
    MutexLock lock(mutex_);
    return made_.contains(taken_);
  }

  void start() {
    {
      MutexLock lock(mutex_);
      stopping_ = false;
    }
    for (int i = 0; i < threads_wanted_; ++i) {
      threads_.emplace_back([this] {
        set_thread_name("trireme-decode");
        run();
      });
    }
  }
  // Ends the threads. All pieces that were cut are decoded then.
  void stop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void run() {
    while (true) {
      std::optional<Piece> piece;
      int64_t number = 0;
      {
        // Held while a piece is cut, so that pieces are numbered in the order of the file. The
        // consumer needs the other lock only.
        MutexLock cutting(cutting_);
        {
          MutexLock lock(mutex_);
          while (!stopping_ && !ended_ && cut_ - taken_ >= kAhead * threads_wanted_) {
            changed_.wait(mutex_);
          }
          if (stopping_ || ended_) return;
        }
        absl::StatusOr<std::optional<Piece>> next = try_cut();
        MutexLock lock(mutex_);
        number = cut_;
        if (!next.ok() || !next->has_value()) {
          ended_ = true;
          if (!next.ok()) made_.emplace(cut_++, Decoded{nullptr, next.status()});
          changed_.notify_all();
          return;
        }
        ++cut_;
        piece = *std::move(next);
      }
      Decoded decoded = try_decode(*piece);
      MutexLock lock(mutex_);
      made_.emplace(number, std::move(decoded));
      changed_.notify_all();
    }
  }
  absl::StatusOr<std::optional<Piece>> try_cut() {
    absl::StatusOr<std::optional<Piece>> piece;
    const absl::Status status = try_call([&] { piece = cutter_.cut(cutter_.most_records()); });
    return status.ok() ? std::move(piece) : status;
  }
  Decoded try_decode(const Piece& piece) {
    Decoded decoded;
    const absl::Status status = try_call([&] { decoded = cutter_.decode(piece); });
    return status.ok() ? std::move(decoded) : Decoded{nullptr, with_origin(status, cutter_.file())};
  }

  const int threads_wanted_;
  PieceCutter cutter_;        // used under cutting_ while there are threads
  BlockPtr rest_;             // rows that skip() has left of a block
  absl::Status after_block_;  // error that follows the block that was returned last
  std::vector<std::thread> threads_;
  Mutex cutting_;
  Mutex mutex_;
  CondVar changed_;
  std::map<int64_t, Decoded> made_ ABSL_GUARDED_BY(mutex_);  // by piece
  int64_t cut_ ABSL_GUARDED_BY(mutex_) = 0;                  // pieces that were cut
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;                // pieces that the consumer has taken
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockReader>> open_records(
    Files& files, std::shared_ptr<const RecordFormat> format, RecordReaderOptions options) {
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, files.open(options.path));
  const int threads = options.threads;
  PieceCutter cutter(std::move(format), std::move(file), std::move(options));
  TRIREME_RETURN_IF_ERROR(cutter.read_head());
  return std::make_unique<RecordReader>(std::move(cutter), threads);
}

uint64_t bad_records() {
  return left_out;
}

}  // namespace trireme::internal
