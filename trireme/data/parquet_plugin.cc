#include "trireme/data/parquet_plugin.h"

#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/type.h>
#include <arrow/util/thread_pool.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/arrow_column.h"
#include "trireme/data/arrow_file.h"
#include "trireme/data/arrow_type.h"

// A file of Parquet consists of row groups, and a row group of one chunk of pages for each column.
// The chunks of a row group are read at once and decoded in parallel, in batches of rows. Small row
// groups are read together.
namespace trireme::internal {
namespace {

// Limits of a batch.
constexpr int64_t kBatchRows = 64 << 10;
constexpr int64_t kBatchBytes = 8 << 20;

// Returns an error of Arrow, whose place in the file `place` describes.
absl::Status arrow_error(const std::string& place, const arrow::Status& status) {
  absl::Status read = read_error(status);
  if (!read.ok()) return read;
  const std::string text = absl::StrCat(place, ": ", status.message());
  if (status.IsOutOfMemory()) return absl::ResourceExhaustedError(text);
  return absl::DataLossError(text);
}

// Calls a function of Arrow or LibTorch, both of which may throw.
template <typename F>
auto without_exceptions(F&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is not enough memory to read the file");
  } catch (const std::exception& error) {
    return absl::DataLossError(error.what());
  }
}

// Arrow has one pool of threads for the process, which is as large as the largest number that a
// reader has asked for.
void reserve_threads(int threads) {
  static std::mutex mutex;
  static int reserved = 0;
  const std::lock_guard lock(mutex);
  if (threads <= reserved) return;
  reserved = threads;
  // Fails only for numbers that are not positive.
  static_cast<void>(arrow::SetCpuThreadPoolCapacity(threads));
}

int count_threads(int threads) {
  const int cores = std::max<int>(std::thread::hardware_concurrency(), 1);
  return std::min(cores, threads == 0 ? 4 : threads);
}

absl::StatusOr<std::unique_ptr<parquet::arrow::FileReader>> open_file(
    std::unique_ptr<InputFile> file, int threads) {
  parquet::ReaderProperties properties(arrow::default_memory_pool());
  properties.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/threads > 1);
  arrow_properties.set_pre_buffer(true);
  // Reads the chunks of a row group at once; by default each is read when it is needed.
  arrow_properties.set_cache_options(arrow::io::CacheOptions::Defaults());
  parquet::arrow::FileReaderBuilder builder;
  const auto opened = builder.Open(std::make_shared<ArrowFile>(std::move(file)), properties);
  if (!opened.ok()) return arrow_error("not a valid Parquet file", opened);
  auto reader = builder.properties(arrow_properties)->Build();
  if (!reader.ok()) return arrow_error("not a valid Parquet file", reader.status());
  return *std::move(reader);
}

absl::StatusOr<std::shared_ptr<arrow::Schema>> schema_of(parquet::arrow::FileReader& reader) {
  std::shared_ptr<arrow::Schema> schema;
  const arrow::Status status = reader.GetSchema(&schema);
  if (!status.ok()) return arrow_error("not a valid schema", status);
  return schema;
}

// Adds the chunks that a column consists of.
void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.column_index >= 0) leaves.push_back(field.column_index);
  for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child, leaves);
}

// Reads the rows of a file.
class ParquetRows final : public BlockReader {
 public:
  ParquetRows(std::unique_ptr<parquet::arrow::FileReader> reader, std::vector<Column> columns)
      : reader_(std::move(reader)), columns_(std::move(columns)) {}

  // Checks the columns and the sizes of the row groups. Must be called first.
  absl::Status prepare();
  absl::StatusOr<BlockPtr> next() override {
    return without_exceptions([&] { return next_block(); });
  }
  absl::StatusOr<int64_t> skip(int64_t count) override {
    return without_exceptions([&] { return pass_over(count); });
  }

 private:
  absl::Status find_columns();
  absl::Status count_rows();
  int64_t batch_rows() const;
  absl::StatusOr<BlockPtr> next_block();
  absl::StatusOr<int64_t> pass_over(int64_t count);
  absl::Status open_groups();
  absl::StatusOr<BlockPtr> make_block(const arrow::RecordBatch& batch, int64_t first_row) const;
  absl::Status find_damage(const arrow::Status& status);

  const std::unique_ptr<parquet::arrow::FileReader> reader_;
  const std::vector<Column> columns_;
  std::vector<int> leaves_;          // chunks of each row group that are read
  std::vector<int64_t> group_rows_;  // number of rows in each row group
  int64_t batch_rows_ = 1;
  int next_group_ = 0;    // first row group that has not been opened
  int64_t next_row_ = 0;  // first row that has not been read, counted from the begin of the file

  // The row groups that are open: those from first_group_ to next_group_, which end at end_row_.
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // null if no row group is open
  int first_group_ = 0;
  int64_t end_row_ = 0;
  int64_t unwanted_ = 0;  // rows to pass over, counted from next_row_
};

absl::Status ParquetRows::prepare() {
  TRIREME_RETURN_IF_ERROR(find_columns());
  TRIREME_RETURN_IF_ERROR(count_rows());
  batch_rows_ = batch_rows();
  reader_->set_batch_size(batch_rows_);
  return absl::OkStatus();
}

absl::Status ParquetRows::find_columns() {
  TRIREME_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Schema> schema, schema_of(*reader_));
  for (const Column& column : columns_) {
    const std::vector<int> found = schema->GetAllFieldIndices(column.name);
    if (found.size() != 1) {
      std::string names;
      for (const std::string& name : schema->field_names()) {
        absl::StrAppend(&names, names.empty() ? "" : ", ", name);
        if (names.size() > 1000) break;
      }
      return absl::InvalidArgumentError(absl::StrCat("there are ", found.size(), " columns '",
                                                     column.name,
                                                     "', expected one; the file has: ", names));
    }
    TRIREME_RETURN_IF_ERROR(check_arrow_type(column, *schema->field(found[0])->type()));
    add_leaves(reader_->manifest().schema_fields[found[0]], leaves_);
  }
  return absl::OkStatus();
}

absl::Status ParquetRows::count_rows() {
  const auto metadata = reader_->parquet_reader()->metadata();
  int64_t rows = 0;
  for (int i = 0; i < metadata->num_row_groups(); ++i) {
    const int64_t count = metadata->RowGroup(i)->num_rows();
    if (count < 0 || __builtin_add_overflow(rows, count, &rows)) {
      return absl::DataLossError(absl::StrCat("row group ", i, " has ", count, " rows"));
    }
    group_rows_.push_back(count);
  }
  return absl::OkStatus();
}

int64_t ParquetRows::batch_rows() const {
  double bytes = 1;
  for (const Column& column : columns_) {
    bytes += static_cast<double>(values_per_row(column)) * c10::elementSize(column.dtype);
  }
  // Assumes that the values of ragged columns are not much larger than their encoded form.
  const auto metadata = reader_->parquet_reader()->metadata();
  double encoded = 0;
  for (const int leaf : leaves_) {
    if (group_rows_.empty() || group_rows_[0] == 0) break;
    encoded += static_cast<double>(
        std::max<int64_t>(metadata->RowGroup(0)->ColumnChunk(leaf)->total_uncompressed_size(), 0));
  }
  if (encoded > 0) bytes = std::max(bytes, encoded / static_cast<double>(group_rows_[0]));
  return std::clamp<int64_t>(static_cast<int64_t>(kBatchBytes / bytes), 1, kBatchRows);
}

absl::Status ParquetRows::open_groups() {
  first_group_ = next_group_;
  std::vector<int> groups;
  int64_t rows = 0;
  do {
    rows += group_rows_[next_group_];
    groups.push_back(next_group_++);
  } while (next_group_ < std::ssize(group_rows_) && group_rows_[next_group_] <= batch_rows_ - rows);
  end_row_ = next_row_ + rows;
  auto batches = reader_->GetRecordBatchReader(groups, leaves_);
  if (!batches.ok()) return find_damage(batches.status());
  batches_ = *std::move(batches);
  return absl::OkStatus();
}

absl::StatusOr<BlockPtr> ParquetRows::next_block() {
  while (true) {
    if (batches_ == nullptr) {
      if (next_group_ == std::ssize(group_rows_)) return BlockPtr();
      TRIREME_RETURN_IF_ERROR(open_groups());
    }
    std::shared_ptr<arrow::RecordBatch> batch;
    const arrow::Status status = batches_->ReadNext(&batch);
    if (!status.ok()) return find_damage(status);
    const int64_t rows = batch == nullptr ? 0 : batch->num_rows();
    if (rows > end_row_ - next_row_ || (batch == nullptr && next_row_ < end_row_)) {
      return absl::DataLossError(
          absl::StrCat("row groups ", first_group_, " to ", next_group_ - 1, " end at row ",
                       next_row_ + rows, "; according to the metadata they end at row ", end_row_));
    }
    if (batch == nullptr) {
      batches_.reset();
      continue;
    }
    const int64_t first = std::exchange(next_row_, next_row_ + rows);
    const int64_t unwanted = std::min(unwanted_, rows);
    unwanted_ -= unwanted;
    if (unwanted < rows) return make_block(*batch->Slice(unwanted), first + unwanted);
  }
}

absl::StatusOr<BlockPtr> ParquetRows::make_block(const arrow::RecordBatch& batch,
                                                 int64_t first_row) const {
  auto block = std::make_shared<Block>();
  block->rows = batch.num_rows();
  for (const Column& column : columns_) {
    const std::shared_ptr<arrow::Array> array = batch.GetColumnByName(column.name);
    if (array == nullptr) return absl::InternalError("Arrow has left out a column");
    TRIREME_ASSIGN_OR_RETURN(BlockColumn values, convert_array(column, array, first_row));
    block->columns.push_back(std::move(values));
  }
  return BlockPtr(std::move(block));
}

absl::StatusOr<int64_t> ParquetRows::pass_over(int64_t count) {
  int64_t left = count;
  if (batches_ != nullptr) {
    const int64_t open = end_row_ - next_row_ - unwanted_;
    if (left < open) {
      unwanted_ += left;
      return count;
    }
    left -= open;
    next_row_ = end_row_;
    unwanted_ = 0;
    batches_.reset();
  }
  for (; next_group_ < std::ssize(group_rows_) && group_rows_[next_group_] <= left; ++next_group_) {
    left -= group_rows_[next_group_];
    next_row_ += group_rows_[next_group_];
  }
  if (left > 0 && next_group_ < std::ssize(group_rows_)) {
    TRIREME_RETURN_IF_ERROR(open_groups());
    unwanted_ = std::exchange(left, 0);
  }
  return count - left;
}

// Finds the chunk that cannot be read, because Arrow does not say which. Reads the chunks of the
// open row groups one by one, until one fails too.
absl::Status ParquetRows::find_damage(const arrow::Status& status) {
  batches_.reset();
  const auto metadata = reader_->parquet_reader()->metadata();
  for (int group = first_group_; group < next_group_; ++group) {
    for (const int leaf : leaves_) {
      const auto read = [&]() -> arrow::Status {
        ARROW_ASSIGN_OR_RAISE(const auto batches, reader_->GetRecordBatchReader({group}, {leaf}));
        std::shared_ptr<arrow::RecordBatch> batch;
        do {
          ARROW_RETURN_NOT_OK(batches->ReadNext(&batch));
        } while (batch != nullptr);
        return arrow::Status::OK();
      };
      const arrow::Status alone = read();
      if (alone.ok()) continue;
      const std::string name = metadata->schema()->Column(leaf)->path()->ToDotString();
      return arrow_error(absl::StrCat("row group ", group, ", column '", name, "'"), alone);
    }
  }
  return arrow_error(absl::StrCat("row groups ", first_group_, " to ", next_group_ - 1), status);
}

class ArrowPlugin final : public ParquetPlugin {
 public:
  absl::StatusOr<std::unique_ptr<BlockReader>> open(std::unique_ptr<InputFile> file,
                                                    std::vector<Column> columns,
                                                    int threads) override {
    using Result = absl::StatusOr<std::unique_ptr<BlockReader>>;
    threads = count_threads(threads);
    reserve_threads(threads);
    return without_exceptions([&]() -> Result {
      TRIREME_ASSIGN_OR_RETURN(auto reader, open_file(std::move(file), threads));
      auto rows = std::make_unique<ParquetRows>(std::move(reader), std::move(columns));
      TRIREME_RETURN_IF_ERROR(rows->prepare());
      return rows;
    });
  }

  absl::StatusOr<std::vector<Column>> columns(std::unique_ptr<InputFile> file) override {
    using Result = absl::StatusOr<std::vector<Column>>;
    return without_exceptions([&]() -> Result {
      TRIREME_ASSIGN_OR_RETURN(const auto reader, open_file(std::move(file), 1));
      TRIREME_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Schema> schema, schema_of(*reader));
      std::vector<Column> columns;
      for (const std::shared_ptr<arrow::Field>& field : schema->fields()) {
        std::optional<Column> column = column_of_field(*field);
        if (column) columns.push_back(*std::move(column));
      }
      if (!columns.empty()) return columns;
      return absl::InvalidArgumentError(
          "there are no columns of numbers; name the columns to read");
    });
  }
};

}  // namespace
}  // namespace trireme::internal

extern "C" __attribute__((visibility("default"))) trireme::internal::ParquetPlugin*
trireme_parquet_plugin() {
  static auto* const plugin = new trireme::internal::ArrowPlugin;
  return plugin;
}
