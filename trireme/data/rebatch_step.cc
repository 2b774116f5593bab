#include "trireme/data/rebatch_step.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr int kMostParts = 1 << 16;

// Returns true if every tensor has an axis that counts rows.
bool is_batched(const ElementSpec& spec) {
  return !spec.empty() &&
         std::ranges::none_of(spec, [](const TensorSpec& tensor) { return tensor.sizes.empty(); });
}

absl::Status not_batches(const ElementSpec& spec) {
  return invalid_argument(
      absl::StrCat("its elements, ", to_string(spec), ", are not batches; put batch() before it"));
}

ElementSpec with_rows(ElementSpec spec, int64_t rows) {
  for (TensorSpec& tensor : spec) tensor.sizes[0] = rows;
  return spec;
}

// Returns an error unless elements are batches with the same number of rows in all tensors, which
// differ in this number at most.
absl::Status check_batches(const std::vector<ElementSpec>& specs) {
  for (const ElementSpec& spec : specs) {
    if (!is_batched(spec)) return not_batches(spec);
    for (const TensorSpec& tensor : spec) {
      if (tensor.sizes[0] != spec[0].sizes[0]) return not_batches(spec);
    }
    if (with_rows(spec, -1) != with_rows(specs[0], -1)) {
      return invalid_argument(absl::StrCat("its batches, ", to_string(specs[0]), " and ",
                                           to_string(spec), ", cannot be joined"));
    }
  }
  if (specs[0][0].sizes[0] > 0) return absl::OkStatus();
  return invalid_argument(
      absl::StrCat("the size of its batches, ", to_string(specs[0]), ", is not known"));
}

// Returns the number of parts of `rows` rows, the last of which may be smaller than its size. Parts
// of size 0 belong to the part before them.
int64_t count_parts(const std::vector<int64_t>& sizes, int64_t sum, int64_t rows) {
  const int64_t whole = rows / sum;
  int64_t left = rows % sum, parts = 0;
  if (left == 0) return whole * static_cast<int64_t>(sizes.size());
  for (int64_t size : sizes) {
    if (left == 0 && size > 0) break;
    left -= std::min(left, size);
    ++parts;
  }
  return whole * static_cast<int64_t>(sizes.size()) + parts;
}

// Gives parts of the batches that it draws. Parts inside of one batch are views of it.
class Rebatched : public Stream<Element> {
 public:
  Rebatched(DatasetStepPtr step, StreamPtr<Element> input)
      : step_(std::move(step)), input_(std::move(input)) {}

  Next<Element> next() override {
    const auto& sizes = step_->def.rebatch().sizes();
    const int64_t size = sizes[place_];
    // A part of size 0 at the end of a round is given although there may be no more rows.
    if (size > 0 || place_ == 0) {
      TRIREME_ASSIGN_OR_RETURN(const bool has_rows, fill());
      if (!has_rows) return std::nullopt;
    }
    place_ = (place_ + 1) % sizes.size();
    if (size == 0) return rows_of(0);
    std::vector<Element> pieces = {rows_of(std::min(size, left_))};
    for (int64_t rows = pieces[0][0].size(0); rows < size; rows += pieces.back()[0].size(0)) {
      TRIREME_ASSIGN_OR_RETURN(const bool has_rows, fill());
      if (!has_rows) break;
      pieces.push_back(rows_of(std::min(size - rows, left_)));
    }
    return join(std::move(pieces));
  }

  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    const int64_t parts = step_->def.rebatch().sizes_size();
    if (is_even() && place_ == 0 && left_ == 0 && !ended_) {
      TRIREME_ASSIGN_OR_RETURN(const int64_t batches, input_->skip(count / parts));
      skipped = batches * parts;
    }
    for (; skipped < count; ++skipped) {
      TRIREME_ASSIGN_OR_RETURN(const std::optional<Element> part, next());
      if (!part) break;
    }
    return skipped;
  }

 private:
  // Returns true if every batch is divided into all of the parts.
  bool is_even() const {
    int64_t sum = 0;
    for (int64_t size : step_->def.rebatch().sizes()) sum += size;
    const auto& specs = step_->input->specs;
    return specs.size() == 1 && specs[0][0].sizes[0] == sum;
  }

  // Draws until there are rows. Returns false at the end.
  absl::StatusOr<bool> fill() {
    while (left_ == 0 && !ended_) {
      TRIREME_ASSIGN_OR_RETURN(std::optional<Element> batch, input_->next());
      ended_ = !batch;
      if (ended_) break;
      batch_ = *std::move(batch);
      left_ = batch_[0].size(0);
      for (const at::Tensor& tensor : batch_) {
        if (tensor.size(0) != left_) return fault("a batch has tensors of different sizes");
      }
    }
    return left_ > 0;
  }

  // Takes rows from the current batch.
  Element rows_of(int64_t count) {
    Element rows;
    for (const at::Tensor& tensor : batch_) {
      rows.push_back(tensor.narrow(0, tensor.size(0) - left_, count));
    }
    left_ -= count;
    return rows;
  }

  absl::StatusOr<Element> join(std::vector<Element> pieces) const {
    if (pieces.size() == 1) return std::move(pieces[0]);
    Element part;
    for (size_t i = 0; i < pieces[0].size(); ++i) {
      std::vector<at::Tensor> tensors;
      for (const Element& piece : pieces) {
        if (piece[i].sizes().slice(1) != pieces[0][i].sizes().slice(1)) {
          return fault("consecutive batches have different shapes; give padded_batch() sizes");
        }
        tensors.push_back(piece[i]);
      }
      part.push_back(at::cat(tensors));
    }
    return part;
  }

  absl::Status fault(std::string message) const {
    return make_status(ErrorCode::kInvalidArgument, std::move(message),
                       {"", absl::StrCat("dataset step ", step_->number, " 'rebatch'")});
  }

  const DatasetStepPtr step_;
  const StreamPtr<Element> input_;
  int place_ = 0;  // place of the next part's size
  Element batch_;
  int64_t left_ = 0;    // rows of the current batch that were not given yet
  bool ended_ = false;  // true once the input has ended
};

// Gives the parts of each batch that it draws, as views of it.
class Divided : public Stream<Element> {
 public:
  Divided(DatasetStepPtr step, StreamPtr<Element> input)
      : parts_(step->def.rebatch().parts()), step_(std::move(step)), input_(std::move(input)) {}

  Next<Element> next() override {
    if (place_ == 0) {
      TRIREME_ASSIGN_OR_RETURN(std::optional<Element> batch, input_->next());
      if (!batch) return std::nullopt;
      batch_ = *std::move(batch);
      for (const at::Tensor& tensor : batch_) {
        if (tensor.size(0) == batch_[0].size(0)) continue;
        return make_status(ErrorCode::kInvalidArgument, "a batch has tensors of different sizes",
                           {"", absl::StrCat("dataset step ", step_->number, " 'rebatch'")});
      }
    }
    Element part;
    for (const at::Tensor& tensor : batch_) {
      const int64_t rows = tensor.size(0), size = rows / parts_, larger = rows % parts_;
      part.push_back(tensor.narrow(0, place_ * size + std::min<int64_t>(place_, larger),
                                   size + (place_ < larger ? 1 : 0)));
    }
    place_ = (place_ + 1) % parts_;
    return part;
  }

  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    if (place_ == 0) {
      TRIREME_ASSIGN_OR_RETURN(const int64_t batches, input_->skip(count / parts_));
      skipped = batches * parts_;
    }
    for (; skipped < count; ++skipped) {
      TRIREME_ASSIGN_OR_RETURN(const std::optional<Element> part, next());
      if (!part) break;
    }
    return skipped;
  }

 private:
  const int parts_;
  const DatasetStepPtr step_;
  const StreamPtr<Element> input_;
  int place_ = 0;  // number of the next part of the batch
  Element batch_;
};

absl::Status add_divided(DatasetStep& step) {
  const int64_t parts = step.def.rebatch().parts();
  if (parts > kMostParts) return invalid_argument(absl::StrCat("it has ", parts, " parts"));
  std::vector<ElementSpec> specs;
  for (const ElementSpec& spec : step.input->specs) {
    if (!is_batched(spec)) return not_batches(spec);
    const int64_t rows = spec[0].sizes[0];
    for (int64_t size :
         {rows < 0 ? -1 : (rows + parts - 1) / parts, rows < 0 ? -1 : rows / parts}) {
      ElementSpec part = with_rows(spec, size);
      if (std::ranges::find(specs, part) == specs.end()) specs.push_back(std::move(part));
    }
  }
  step.specs = std::move(specs);
  if (step.count != kEndless && step.count != kUnknownCount &&
      __builtin_mul_overflow(step.count, parts, &step.count)) {
    step.count = kUnknownCount;
  }
  step.items = Items::kElements;
  return absl::OkStatus();
}

}  // namespace

absl::Status add_rebatch(DatasetStep& step) {
  if (step.def.rebatch().parts() > 0) return add_divided(step);
  TRIREME_RETURN_IF_ERROR(check_batches(step.input->specs));
  const auto& given = step.def.rebatch().sizes();
  const std::vector<int64_t> sizes(given.begin(), given.end());
  int64_t sum = 0;
  for (int64_t size : sizes) {
    if (size < 0 || __builtin_add_overflow(sum, size, &sum)) {
      return invalid_argument(absl::StrCat("it has a part of size ", size));
    }
  }
  if (sum == 0 || sizes.size() > kMostParts) {
    return invalid_argument(absl::StrCat("it has ", sizes.size(), " parts with ", sum,
                                         " rows; there must be at most ", kMostParts,
                                         " parts, and rows in one of them"));
  }
  const ElementSpec batch = step.input->specs[0];
  const int64_t rows = batch[0].sizes[0];
  const int64_t largest = std::ranges::max(sizes), smallest = std::ranges::min(sizes);
  const bool same_sizes = step.input->specs.size() == 1;
  const bool is_even = same_sizes && rows == sum;  // every batch becomes all of the parts
  step.specs = {with_rows(batch, largest)};
  if (is_even && smallest == largest - 1) {
    step.specs.push_back(with_rows(batch, smallest));
  } else if (!(is_even && smallest == largest) && largest > 1) {
    step.specs.push_back(with_rows(batch, -1));
  } else if (smallest == 0) {
    step.specs.push_back(with_rows(batch, 0));
  }
  int64_t all = 0;
  if (step.count != kEndless && step.count != kUnknownCount) {
    const bool fits = same_sizes && !__builtin_mul_overflow(rows, step.count, &all) &&
                      all / sum < kEndless / kMostParts - 1;
    step.count = fits ? count_parts(sizes, sum, all) : kUnknownCount;
  }
  step.items = Items::kElements;
  step.reads *= 1 + static_cast<double>(largest) / static_cast<double>(rows);
  return absl::OkStatus();
}

StreamPtr<Element> make_rebatched(DatasetStepPtr step, StreamPtr<Element> input) {
  if (step->def.rebatch().parts() > 0) {
    return std::make_unique<Divided>(std::move(step), std::move(input));
  }
  return std::make_unique<Rebatched>(std::move(step), std::move(input));
}

}  // namespace trireme::internal
