#include "trireme/data/block_streams.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/data/example_element.h"
#include "trireme/data/parquet_reader.h"
#include "trireme/data/record_reader.h"
#include "trireme/data/safetensors_rows.h"

namespace trireme::internal {
namespace {

constexpr int kMostThreadsByDefault = 4;
// A short record may have a wide row, if its text is much shorter than its column.
constexpr double kMostBlockBytes = 16 << 20;

int decoding_threads(const proto::DatasetStep::Files& files) {
  if (files.threads() > 0) return static_cast<int>(files.threads());
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, kMostThreadsByDefault);
}

absl::StatusOr<std::unique_ptr<BlockReader>> open_file(const DatasetStep& source, int file,
                                                       int threads, Counter* bad) {
  const proto::DatasetStep::Files& def = source.def.files();
  const std::string& path = def.names(file);
  if (def.has_parquet()) return open_parquet(def, Files::local(), path);
  if (def.has_safetensors()) return open_safetensors(def, Files::local(), path);
  const double most = kMostBlockBytes / (bytes_of(source.specs[0]) + 1);
  return open_records(Files::local(), source.format,
                      {.path = path,
                       .threads = threads,
                       .most_records = std::max<int64_t>(static_cast<int64_t>(most), 1),
                       .skip_bad = def.skip_bad(),
                       .bad = bad});
}

// Gives the records of the files from `begin` up to but not including `end`.
class FileRows : public Stream<BlockRow> {
 public:
  FileRows(DatasetStepPtr source, int begin, int end, int threads, Counter* bad)
      : source_(std::move(source)), file_(begin), end_(end), threads_(threads), bad_(bad) {}

  Next<BlockRow> next() override {
    while (block_ == nullptr || row_ == block_->rows) {
      TRIREME_ASSIGN_OR_RETURN(const bool is_open, open());
      if (!is_open) return std::nullopt;
      TRIREME_ASSIGN_OR_RETURN(block_, reader_->next());
      row_ = 0;
      if (block_ == nullptr) close();
    }
    return BlockRow{block_, row_++};
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    if (block_ != nullptr) {
      skipped = std::min(count, block_->rows - row_);
      row_ += skipped;
    }
    while (skipped < count) {
      TRIREME_ASSIGN_OR_RETURN(const bool is_open, open());
      if (!is_open) break;
      TRIREME_ASSIGN_OR_RETURN(const int64_t rows, reader_->skip(count - skipped));
      skipped += rows;
      if (skipped < count) close();
    }
    return skipped;
  }

 private:
  // Returns false at the end of the last file.
  absl::StatusOr<bool> open() {
    if (reader_ != nullptr) return true;
    block_ = nullptr;
    if (file_ == end_) return false;
    TRIREME_ASSIGN_OR_RETURN(reader_, open_file(*source_, file_, threads_, bad_));
    return true;
  }
  void close() {
    reader_ = nullptr;
    ++file_;
  }

  const DatasetStepPtr source_;
  int file_;
  const int end_;
  const int threads_;
  Counter* const bad_;
  std::unique_ptr<BlockReader> reader_;
  BlockPtr block_;
  int64_t row_ = 0;  // next row of the block
};

// A file that ends leaves its place in the cycle to the next file. When there are no more, the
// places become fewer.
class InterleavedRows : public Stream<BlockRow> {
 public:
  InterleavedRows(DatasetStepPtr source, int64_t cycle, int64_t block_length, Counter* bad)
      : source_(std::move(source)),
        files_(source_->def.files().names_size()),
        block_length_(block_length),
        bad_(bad),
        open_(std::min<int64_t>(cycle, files_)) {}

  Next<BlockRow> next() override {
    while (move_to_open()) {
      TRIREME_ASSIGN_OR_RETURN(std::optional<BlockRow> row, open_[place_]->next());
      if (row) {
        if (++given_ == block_length_) move_on();
        return row;
      }
      end_file();
    }
    return std::nullopt;
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    while (skipped < count && move_to_open()) {
      const int64_t part = std::min(count - skipped, block_length_ - given_);
      TRIREME_ASSIGN_OR_RETURN(const int64_t rows, open_[place_]->skip(part));
      skipped += rows;
      given_ += rows;
      if (rows < part) {
        end_file();
      } else if (given_ == block_length_) {
        move_on();
      }
    }
    return skipped;
  }

 private:
  // Makes the current place one with an open file. Returns false if there is none left.
  bool move_to_open() {
    for (size_t tried = 0; tried <= open_.size(); ++tried) {
      if (open_[place_] != nullptr) return true;
      if (next_file_ < files_) {
        open_[place_] = std::make_unique<FileRows>(source_, next_file_, next_file_ + 1, 1, bad_);
        ++next_file_;
        return true;
      }
      move_on();
    }
    return false;
  }
  void move_on() {
    place_ = (place_ + 1) % open_.size();
    given_ = 0;
  }
  // As tf.data does, the turn of a file that has ended is over.
  void end_file() {
    open_[place_] = nullptr;
    move_on();
  }

  const DatasetStepPtr source_;
  const int files_;
  const int64_t block_length_;
  Counter* const bad_;
  std::vector<StreamPtr<BlockRow>> open_;  // by place in the cycle; null if there is no file
  int next_file_ = 0;
  size_t place_ = 0;
  int64_t given_ = 0;  // rows that the current file has given in its turn
};

class BlockElements : public Stream<Element> {
 public:
  explicit BlockElements(StreamPtr<BlockRow> rows) : rows_(std::move(rows)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::optional<BlockRow> row, rows_->next());
    return row ? std::optional<Element>(element_of(*row)) : std::nullopt;
  }
  Skipped skip(int64_t count) override { return rows_->skip(count); }

 private:
  const StreamPtr<BlockRow> rows_;
};

// Consecutive rows of one block.
struct BlockRun {
  const Block* block;
  int64_t first, rows;
};

std::vector<BlockRun> runs_of(const std::vector<BlockRow>& rows) {
  std::vector<BlockRun> runs;
  for (const BlockRow& row : rows) {
    const bool continues = !runs.empty() && runs.back().block == row.block.get() &&
                           runs.back().first + runs.back().rows == row.row;
    if (continues) {
      ++runs.back().rows;
    } else {
      runs.push_back({row.block.get(), row.row, 1});
    }
  }
  return runs;
}

// Returns the begin and the end of a run along axis 0 of a column.
std::pair<int64_t, int64_t> place_of_run(const BlockColumn& column, const BlockRun& run) {
  if (column.offsets.empty()) return {run.first, run.first + run.rows};
  return {column.offsets[run.first], column.offsets[run.first + run.rows]};
}

// Copies the values that a column has in some rows, one row after the other.
at::Tensor copy_values(const std::vector<BlockRun>& runs, size_t column) {
  const at::Tensor& like = runs[0].block->columns[column].values;
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = 0;
  for (const BlockRun& run : runs) {
    const auto [begin, end] = place_of_run(run.block->columns[column], run);
    sizes[0] += end - begin;
  }
  at::Tensor copy = at::empty(sizes, like.options());
  if (copy.numel() == 0) return copy;
  const size_t bytes_of_one = copy.nbytes() / sizes[0];
  char* to = static_cast<char*>(copy.mutable_data_ptr());
  for (const BlockRun& run : runs) {
    const BlockColumn& from = run.block->columns[column];
    const auto [begin, end] = place_of_run(from, run);
    const size_t bytes = (end - begin) * bytes_of_one;
    const auto* const first = static_cast<const char*>(from.values.const_data_ptr());
    if (bytes > 0) std::memcpy(to, first + begin * bytes_of_one, bytes);
    to += bytes;
  }
  return copy;
}

// Copies records to a block of their own.
BlockPtr gather_rows(const std::vector<BlockRow>& rows) {
  const std::vector<BlockRun> runs = runs_of(rows);
  auto block = std::make_shared<Block>();
  block->rows = static_cast<int64_t>(rows.size());
  for (size_t i = 0; i < rows[0].block->columns.size(); ++i) {
    BlockColumn column{copy_values(runs, i), {}};
    if (!rows[0].block->columns[i].offsets.empty()) {
      column.offsets.push_back(0);
      for (const BlockRow& row : rows) {
        const std::vector<int64_t>& offsets = row.block->columns[i].offsets;
        column.offsets.push_back(column.offsets.back() + offsets[row.row + 1] - offsets[row.row]);
      }
    }
    block->columns.push_back(std::move(column));
  }
  return block;
}

// Reads some records ahead, and copies them to one block. More of them at a time would cost less,
// but a block stays in memory as long as one of its records.
class GatheredRows : public Stream<BlockRow> {
 public:
  explicit GatheredRows(StreamPtr<BlockRow> rows) : rows_(std::move(rows)) {}

  Next<BlockRow> next() override {
    if (block_ == nullptr || row_ == block_->rows) TRIREME_RETURN_IF_ERROR(gather());
    if (block_ == nullptr) return std::nullopt;
    return BlockRow{block_, row_++};
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    if (block_ != nullptr) {
      skipped = std::min(count, block_->rows - row_);
      row_ += skipped;
    }
    if (skipped == count) return count;
    TRIREME_RETURN_IF_ERROR(std::exchange(after_block_, absl::OkStatus()));
    TRIREME_ASSIGN_OR_RETURN(const int64_t rows, rows_->skip(count - skipped));
    return skipped + rows;
  }

 private:
  // Makes the next block, or none at the end. An error is kept until the records before it are
  // used.
  absl::Status gather() {
    block_ = nullptr;
    row_ = 0;
    TRIREME_RETURN_IF_ERROR(std::exchange(after_block_, absl::OkStatus()));
    std::vector<BlockRow> rows;
    while (rows.size() < kGathered) {
      Next<BlockRow> row = rows_->next();
      if (!row.ok()) after_block_ = row.status();
      if (!row.ok() || !row->has_value()) break;
      rows.push_back(**std::move(row));
    }
    if (rows.empty()) return std::exchange(after_block_, absl::OkStatus());
    block_ = gather_rows(rows);
    return absl::OkStatus();
  }

  static constexpr size_t kGathered = 16;

  const StreamPtr<BlockRow> rows_;
  BlockPtr block_;
  int64_t row_ = 0;           // next row of the block
  absl::Status after_block_;  // error that follows the records of the block
};

// Stacks records. Those that are consecutive are not copied.
Element stack_rows(const std::vector<BlockRow>& rows) {
  const std::vector<BlockRun> runs = runs_of(rows);
  const auto count = static_cast<int64_t>(rows.size());
  const std::vector<BlockColumn>& columns = rows[0].block->columns;
  Element batch;
  for (size_t column = 0; column < columns.size(); ++column) {
    batch.push_back(runs.size() == 1 ? columns[column].values.narrow(0, runs[0].first, count)
                                     : copy_values(runs, column));
  }
  return batch;
}

class BlockBatches : public Stream<Element> {
 public:
  BlockBatches(BatchSize batch, StreamPtr<BlockRow> rows) : batch_(batch), rows_(std::move(rows)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::vector<BlockRow> rows, take_batch(*rows_, batch_));
    if (rows.empty()) return std::nullopt;
    return stack_rows(rows);
  }
  Skipped skip(int64_t count) override { return skip_batches(*rows_, batch_, count); }

 private:
  const BatchSize batch_;
  const StreamPtr<BlockRow> rows_;
};

}  // namespace

StreamPtr<BlockRow> open_file_rows(DatasetStepPtr source, Counter* bad) {
  const int files = source->def.files().names_size();
  const int threads = decoding_threads(source->def.files());
  return std::make_unique<FileRows>(std::move(source), 0, files, threads, bad);
}

StreamPtr<BlockRow> open_interleaved(DatasetStepPtr source, int64_t cycle, int64_t block_length,
                                     Counter* bad) {
  return std::make_unique<InterleavedRows>(std::move(source), cycle, block_length, bad);
}

StreamPtr<BlockRow> open_gathered(StreamPtr<BlockRow> rows) {
  return std::make_unique<GatheredRows>(std::move(rows));
}

Element element_of(const BlockRow& row) {
  Element element;
  for (const BlockColumn& column : row.block->columns) {
    if (column.offsets.empty()) {
      element.push_back(column.values.select(0, row.row));
    } else {
      const int64_t begin = column.offsets[row.row], end = column.offsets[row.row + 1];
      element.push_back(column.values.narrow(0, begin, end - begin));
    }
  }
  return element;
}

StreamPtr<Element> open_block_elements(StreamPtr<BlockRow> rows) {
  return std::make_unique<BlockElements>(std::move(rows));
}

StreamPtr<Element> open_block_batches(BatchSize batch, StreamPtr<BlockRow> rows) {
  return std::make_unique<BlockBatches>(batch, std::move(rows));
}

}  // namespace trireme::internal
