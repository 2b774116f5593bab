// The lines are those of Keras, so that programs and people that read them find what they know:
//   20/20 ━━━━━━━━━━━━━━━━━━━━ 0s 3ms/step - loss: 0.4735 - accuracy: 0.9120
//   20/20 - 2s - loss: 0.4735 - accuracy: 0.9120 - 2s/epoch - 119ms/step
// The first time is the one that is left while steps run, and the one that was needed at the end.
#include "trireme/model/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trireme::internal {
namespace {

constexpr auto kBetweenBars = std::chrono::milliseconds(50);
constexpr int64_t kBarCells = 20, kFewestBarCells = 5;
constexpr double kSmallFigure = 1e-3;  // Figures up to this one are shown with an exponent.

Verbose resolve_verbose(Verbose verbose, bool runs_here, std::FILE* file) {
  if (verbose != Verbose::kAuto) return verbose;
  return runs_here && isatty(fileno(file)) == 1 ? Verbose::kBar : Verbose::kLines;
}

double seconds_between(Time from, Time to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string format_figures(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs.entries()) {
    const bool is_small = !(std::abs(value) > kSmallFigure);
    absl::StrAppend(&text, " - ", name, ": ",
                    is_small ? absl::StrFormat("%.4e", value) : absl::StrFormat("%.4f", value));
  }
  return text;
}

// Formats a time per step or epoch: "3ms/step".
std::string format_rate(double seconds, const char* unit) {
  if (seconds >= 1 || seconds == 0) return absl::StrFormat("%.0fs/%s", seconds, unit);
  if (seconds >= 1e-3) return absl::StrFormat("%.0fms/%s", seconds * 1e3, unit);
  return absl::StrFormat("%.0fus/%s", seconds * 1e6, unit);
}

std::string format_time_left(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole > 3600) {
    return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole % 3600 / 60, whole % 60);
  }
  if (whole > 60) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrCat(whole, "s");
}

// Formats the number of steps, with the width of the total.
std::string format_count(int64_t done, int64_t total) {
  if (total == 0) return absl::StrCat(done, "/Unknown");
  const std::string last = absl::StrCat(total);
  return absl::StrFormat("%*d/%s", static_cast<int>(last.size()), done, last);
}

std::string format_bar(int64_t done, int64_t total, int64_t cells) {
  const int64_t filled = std::min(cells, cells * done / std::max<int64_t>(total, 1));
  std::string bar = " ";
  for (int64_t i = 0; i < cells; ++i) bar += i < filled ? "━" : "─";
  return bar;
}

}  // namespace

StepProgress::StepProgress(Verbose verbose, bool runs_here, std::FILE* file, const Clock& clock)
    : verbose_(resolve_verbose(verbose, runs_here, file)),
      runs_here_(runs_here),
      file_(file),
      clock_(clock),
      line_(file, kBetweenBars, {}, clock) {}

void StepProgress::print(const std::string& line) {
  if (verbose_ == Verbose::kSilent) return;
  line_.clear();
  std::fputs(absl::StrCat(line, "\n").c_str(), file_);
  std::fflush(file_);
}

void StepProgress::begin(int64_t done, int64_t total) {
  total_ = total;
  begin_ = {done, clock_.now()};
  first_.reset();
  steps_end_.reset();
}

void StepProgress::update(int64_t done, const Logs& logs) {
  if (verbose_ == Verbose::kSilent) return;
  if (verbose_ == Verbose::kBar && line_.due()) line_.show(bar_line(done, logs, false));
  if (!first_) first_ = {done, clock_.now()};
}

void StepProgress::end_steps() {
  steps_end_ = clock_.now();
}

void StepProgress::end(int64_t done, const Logs& logs) {
  if (verbose_ == Verbose::kSilent) return;
  if (total_ == 0) total_ = done;
  if (verbose_ == Verbose::kBar) {
    print(bar_line(done, logs, true));
    return;
  }
  const double seconds = seconds_between(begin_.time, clock_.now());
  print(absl::StrFormat("%s - %.0fs%s - %s - %s", format_count(done, total_), seconds,
                        format_figures(logs), format_rate(seconds, "epoch"),
                        format_rate(seconds_per_step(done), "step")));
}

double StepProgress::seconds_per_step(int64_t done) const {
  // The first step captures the function, so its time would spoil the average. Elsewhere, steps
  // are counted before they are done.
  const Mark& from = runs_here_ && first_ && first_->done < done ? *first_ : begin_;
  return seconds_between(from.time, steps_end_.value_or(clock_.now())) /
         static_cast<double>(std::max<int64_t>(done - from.done, 1));
}

std::string StepProgress::bar_line(int64_t done, const Logs& logs, bool is_end) const {
  const double per_step = seconds_per_step(done);
  const std::string time =
      is_end || total_ == 0
          ? absl::StrFormat("%.0fs", seconds_between(begin_.time, clock_.now()))
          : format_time_left(per_step * static_cast<double>(std::max<int64_t>(total_ - done, 0)));
  const std::string count = format_count(done, total_);
  const std::string rest =
      absl::StrCat(" ", time, " ", format_rate(per_step, "step"), format_figures(logs));
  if (total_ == 0) return count + rest;
  int64_t cells = kBarCells;
  if (!is_end) {  // A line that changes must fit, since only its last row could be removed.
    const int64_t needed = static_cast<int64_t>(count.size() + count_characters(rest)) + 1;
    cells = std::min(cells, static_cast<int64_t>(line_.columns()) - needed);
    if (cells < kFewestBarCells) cells = 0;
  }
  return count + (cells > 0 ? format_bar(done, total_, cells) : "") + rest;
}

ProgressPrinter::ProgressPrinter(Verbose verbose, std::FILE* file, const Clock& clock)
    : verbose_(verbose), file_(file), clock_(clock) {}

void ProgressPrinter::on_train_begin(Fit& fit) {
  progress_.emplace(verbose_, fit.runs_here(), file_, clock_);
}

void ProgressPrinter::on_train_end(Fit& fit, const Logs& logs) {
  progress_.reset();
}

void ProgressPrinter::on_epoch_begin(Fit& fit) {
  progress_->print(absl::StrCat("Epoch ", fit.epoch() + 1, "/", fit.epochs()));
  progress_->begin(fit.step_of_epoch(), fit.steps_per_epoch());
}

void ProgressPrinter::on_epoch_end(Fit& fit, Logs& logs) {
  progress_->end(fit.step_of_epoch(), logs);
}

void ProgressPrinter::on_batch_end(Fit& fit, const Logs& logs) {
  progress_->update(fit.step_of_epoch(), logs);
}

void ProgressPrinter::on_validation_begin(Fit& fit) {
  progress_->end_steps();
}

}  // namespace trireme::internal
