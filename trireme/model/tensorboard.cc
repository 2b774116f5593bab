#include "trireme/model/tensorboard.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "trireme/base/clock.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/observe/event_file.h"

namespace trireme {
namespace {

constexpr char kTrainRun[] = "train", kValidationRun[] = "validation";
constexpr char kValidationPrefix[] = "val_";
constexpr int64_t kHistogramBuckets = 30;
constexpr int64_t kHistogramPart = int64_t{1} << 22;  // Values that are counted at a time.
constexpr auto kBetweenFlushes = std::chrono::seconds(1);

// Calls a function with each part of a tensor's finite values, as float64.
template <typename F>
void for_finite_parts(const at::Tensor& values, F function) {
  for (const at::Tensor& part : values.split(kHistogramPart)) {
    const at::Tensor numbers = part.to(at::kCPU, at::kDouble);
    const at::Tensor finite = numbers.masked_select(numbers.isfinite());
    if (finite.numel() > 0) function(finite);
  }
}

// Returns buckets of one width from the least to the largest value, or none if no value is finite.
// If all values are equal, all buckets have the width 0 and the last one has the values, as
// TensorBoard expects it.
std::vector<HistogramBucket> count_buckets(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = (tensor.is_complex() ? at::view_as_real(tensor) : tensor).flatten();
  double least = INFINITY, largest = -INFINITY;
  for_finite_parts(values, [&](const at::Tensor& part) {
    least = std::min(least, part.min().item<double>());
    largest = std::max(largest, part.max().item<double>());
  });
  if (least > largest) return {};
  std::vector<HistogramBucket> buckets(kHistogramBuckets);
  const double width = (largest - least) / kHistogramBuckets;
  for (int64_t i = 0; i < kHistogramBuckets; ++i) {
    buckets[i].left = least + width * static_cast<double>(i);
    if (i > 0) buckets[i - 1].right = buckets[i].left;
  }
  buckets.back().right = largest;
  for_finite_parts(values, [&](const at::Tensor& part) {
    if (width == 0) {
      buckets.back().count += static_cast<double>(part.numel());
      return;
    }
    const at::Tensor counts = at::histc(part, kHistogramBuckets, least, largest);
    for (int64_t i = 0; i < kHistogramBuckets; ++i) {
      buckets[i].count += counts.const_data_ptr<double>()[i];
    }
  });
  return buckets;
}

}  // namespace

// The event files of both runs. A file is created by the first record for it, so that restore() can
// come before.
class TensorBoard::Runs {
 public:
  explicit Runs(std::string folder)
      : folder_(std::move(folder)),
        writer_(absl::StrCat("trireme ", format_incarnation(new_incarnation()))) {}
  // Writes the last records of a fit that has failed.
  ~Runs() {
    for (auto& [run, file] : open_) (void)file->flush();
  }
  Runs(const Runs&) = delete;

  // Returns the file to write to.
  EventFile& file(const std::string& run) {
    if (const auto found = open_.find(run); found != open_.end()) return *found->second;
    auto file = value_or_throw(EventFile::create(join_path(folder_, run), {.writer = writer_}));
    written_[run][file->name()] = file->bytes_written();
    return *(open_[run] = std::move(file));
  }

  // Records the texts before any other records.
  void add_texts(const std::map<std::string, std::string>& texts, int64_t step) {
    if (std::exchange(has_texts_, true)) return;
    for (const auto& [tag, text] : texts) file(kTrainRun).add_text(tag, step, text);
  }

  void flush() {
    for (auto& [run, file] : open_) {
      throw_if_error(file->flush());
      written_[run][file->name()] = file->bytes_written();
    }
    next_flush_ = after(kBetweenFlushes);
  }
  // Flushes unless that was done a moment ago, so that a run can be watched.
  void flush_if_due() {
    if (Clock::real().now() >= next_flush_) flush();
  }
  void close() {
    flush();
    open_.clear();
  }

  std::string save() {
    flush();
    return nlohmann::json{{"writer", writer_}, {"texts", has_texts_}, {"files", written_}}.dump();
  }

  void restore(const std::string& state) {
    open_.clear();  // Records that were not flushed belong to steps that are repeated.
    try {
      const auto json = nlohmann::json::parse(state);
      writer_ = json.at("writer").get<std::string>();
      has_texts_ = json.at("texts").get<bool>();
      written_ = json.at("files").get<Written>();
    } catch (const nlohmann::json::exception& error) {
      throw Error(ErrorCode::kDataLoss,
                  absl::StrCat("the state of TensorBoard in the checkpoint is malformed: ",
                               error.what(), "; restore another checkpoint"));
    }
    for (const char* run : {kTrainRun, kValidationRun}) {
      throw_if_error(rewind_event_files(join_path(folder_, run), writer_, written_[run]));
    }
  }

 private:
  // The files of all processes of this fit, with the number of bytes flushed, by run and name.
  using Written = std::map<std::string, std::map<std::string, uint64_t>>;

  const std::string folder_;
  std::string writer_;  // The same in all processes that continue the fit.
  bool has_texts_ = false;
  Written written_;
  std::map<std::string, std::unique_ptr<EventFile>> open_;  // By the name of the run.
  Time next_flush_;
};

TensorBoard::TensorBoard(std::string folder, TensorBoardOptions options)
    : options_(std::move(options)), runs_(std::make_shared<Runs>(std::move(folder))) {
  if (options_.histogram_freq < 0 || options_.update_freq < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("TensorBoard: histogram_freq is ", options_.histogram_freq,
                             " and update_freq is ", options_.update_freq,
                             "; both must be at least 0, which means never"));
  }
}

void TensorBoard::on_train_begin(Fit& fit) {
  writes_ = fit.is_chief();
}

void TensorBoard::on_epoch_begin(Fit& fit) {
  last_step_ = fit.step();
  if (writes_ && !options_.text.empty()) runs_->add_texts(options_.text, fit.step());
}

void TensorBoard::on_batch_end(Fit& fit, const Logs& logs) {
  if (!writes_ || options_.update_freq == 0 || logs.entries().empty()) return;
  const int64_t before = std::exchange(last_step_, fit.step());
  if (before / options_.update_freq == last_step_ / options_.update_freq) return;
  EventFile& file = runs_->file(kTrainRun);
  for (const auto& [name, value] : logs.entries()) {
    file.add_scalar(absl::StrCat("batch_", name), last_step_, value);
  }
  runs_->flush_if_due();
}

void TensorBoard::on_epoch_end(Fit& fit, Logs& logs) {
  if (!writes_) return;
  for (const auto& [name, value] : logs.entries()) {
    const bool is_validation = absl::StartsWith(name, kValidationPrefix);
    runs_->file(is_validation ? kValidationRun : kTrainRun)
        .add_scalar(absl::StrCat("epoch_", absl::StripPrefix(name, kValidationPrefix)), fit.epoch(),
                    value);
  }
  // A train_step with an optimizer of its own has no rate that fit() knows.
  if (const double lr = fit.lr(); !logs.contains("learning_rate") && !std::isnan(lr)) {
    runs_->file(kTrainRun).add_scalar("epoch_learning_rate", fit.epoch(), lr);
  }
  if (options_.histogram_freq > 0 && fit.epoch() % options_.histogram_freq == 0) {
    for (const Variable& variable : fit.variables()) {
      const std::string name = absl::StrReplaceAll(variable.name(), {{".", "/"}});
      const std::vector<HistogramBucket> buckets = count_buckets(variable.read());
      if (buckets.empty()) continue;
      runs_->file(kTrainRun).add_histogram(name + "/histogram", fit.epoch(), buckets);
    }
  }
  runs_->flush();
}

void TensorBoard::on_train_end(Fit& fit, const Logs& logs) {
  runs_->close();
}

std::string TensorBoard::save() const {
  return runs_->save();
}

void TensorBoard::restore(const std::string& state) {
  if (writes_) runs_->restore(state);
}

}  // namespace trireme
