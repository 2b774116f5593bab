#include "trireme/data/row_streams.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

int64_t value_of(const proto::DatasetStep::Range& range, Row row) {
  return range.begin() + row * range.step();
}

bool are_consecutive(const std::vector<Row>& rows) {
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] != rows[i - 1] + 1) return false;
  }
  return true;
}

// Returns a batch of rows of the source. Rows that are consecutive are not copied.
Element batch_of(const DatasetStep& source, std::vector<Row>& rows) {
  const auto size = static_cast<int64_t>(rows.size());
  if (source.def.has_range()) {
    at::Tensor batch = at::empty({size}, at::kLong);
    int64_t* next = batch.mutable_data_ptr<int64_t>();
    for (Row row : rows) *next++ = value_of(source.def.range(), row);
    return {std::move(batch)};
  }
  const bool consecutive = are_consecutive(rows);
  const at::Tensor index = at::from_blob(rows.data(), {size}, at::kLong);
  Element batch;
  for (const at::Tensor& tensor : source.tensors) {
    batch.push_back(consecutive ? tensor.narrow(0, rows[0], size)
                                : at::index_select(tensor, 0, index));
  }
  return batch;
}

// Gives the row numbers of a source.
class Rows : public Stream<Row> {
 public:
  explicit Rows(int64_t count) : count_(count) {}

  Next<Row> next() override { return next_ < count_ ? std::optional<Row>(next_++) : std::nullopt; }
  Skipped skip(int64_t count) override {
    const int64_t skipped = std::min(count, count_ - next_);
    next_ += skipped;
    return skipped;
  }

 private:
  const int64_t count_;
  Row next_ = 0;
};

// Gives the rows with the numbers that it draws.
class RowElements : public Stream<Element> {
 public:
  RowElements(DatasetStepPtr source, StreamPtr<Row> rows)
      : source_(std::move(source)), rows_(std::move(rows)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::optional<Row> row, rows_->next());
    return row ? std::optional<Element>(element_of(*source_, *row)) : std::nullopt;
  }
  Skipped skip(int64_t count) override { return rows_->skip(count); }

 private:
  const DatasetStepPtr source_;
  const StreamPtr<Row> rows_;
};

// Batches rows by their numbers.
class RowBatches : public Stream<Element> {
 public:
  RowBatches(DatasetStepPtr source, BatchSize batch, StreamPtr<Row> rows)
      : source_(std::move(source)), batch_(batch), rows_(std::move(rows)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(std::vector<Row> rows, take_batch(*rows_, batch_));
    if (rows.empty()) return std::nullopt;
    return batch_of(*source_, rows);
  }
  Skipped skip(int64_t count) override { return skip_batches(*rows_, batch_, count); }

 private:
  const DatasetStepPtr source_;
  const BatchSize batch_;
  const StreamPtr<Row> rows_;
};

}  // namespace

Element element_of(const DatasetStep& source, Row row) {
  if (source.def.has_range()) {
    return {at::scalar_tensor(value_of(source.def.range(), row), at::kLong)};
  }
  Element element;
  for (const at::Tensor& tensor : source.tensors) element.push_back(tensor.select(0, row));
  return element;
}

StreamPtr<Row> open_rows(int64_t count) {
  return std::make_unique<Rows>(count);
}

StreamPtr<Element> open_row_elements(DatasetStepPtr source, StreamPtr<Row> rows) {
  return std::make_unique<RowElements>(std::move(source), std::move(rows));
}

StreamPtr<Element> open_row_batches(DatasetStepPtr source, BatchSize batch, StreamPtr<Row> rows) {
  return std::make_unique<RowBatches>(std::move(source), batch, std::move(rows));
}

}  // namespace trireme::internal
