#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/model/callback.h"
#include "trireme/model/logs.h"
#include "trireme/model/verbose.h"
#include "trireme/observe/terminal_line.h"

namespace trireme::internal {

// Prints the progress of some steps, which are those of an epoch or of evaluate():
//
//   internal::StepProgress progress(options.verbose, runs_here);
//   progress.begin(0, steps);
//   while (…) progress.update(done, logs);
//   progress.end(done, logs);
//
// update() and end() take the number of steps so far. kBar shows a bar on a terminal, and replaces
// it by its last state at the end; kLines prints one line at the end. Not thread-safe.
class StepProgress {
 public:
  // `runs_here` is true if steps run in this process, which decides what kAuto stands for. `file`
  // and `clock` must outlive the object.
  StepProgress(Verbose verbose, bool runs_here, std::FILE* file = stdout,
               const Clock& clock = Clock::real());

  // Prints a line, such as "Epoch 1/5", unless progress is not shown.
  void print(const std::string& line);
  // Begins with `done` of `total` steps. A total of 0 means that it is not known.
  void begin(int64_t done, int64_t total);
  // Shows the figures so far. Returns at once unless the bar is due.
  void update(int64_t done, const Logs& logs);
  // Ends the time that is divided by the number of steps. The time of the whole goes on.
  void end_steps();
  // Prints the last line.
  void end(int64_t done, const Logs& logs);

 private:
  double seconds_per_step(int64_t done) const;
  std::string bar_line(int64_t done, const Logs& logs, bool is_end) const;

  // A number of steps, and the time at which they were done.
  struct Mark {
    int64_t done = 0;
    Time time;
  };

  const Verbose verbose_;
  const bool runs_here_;
  std::FILE* const file_;
  const Clock& clock_;
  TerminalLine line_;
  int64_t total_ = 0;  // 0 while it is not known.
  Mark begin_;
  std::optional<Mark> first_;  // The first update.
  std::optional<Time> steps_end_;
};

// Prints the progress of a fit(). The model adds it after all other callbacks, so that it shows the
// figures that they add:
//
//   callbacks.push_back(std::make_shared<internal::ProgressPrinter>(options.verbose));
//
// evaluate() uses StepProgress instead.
class ProgressPrinter final : public Callback {
 public:
  // `file` and `clock` must outlive the object.
  explicit ProgressPrinter(Verbose verbose, std::FILE* file = stdout,
                           const Clock& clock = Clock::real());

  void on_train_begin(Fit& fit) override;
  void on_train_end(Fit& fit, const Logs& logs) override;
  void on_epoch_begin(Fit& fit) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
  void on_batch_end(Fit& fit, const Logs& logs) override;
  void on_validation_begin(Fit& fit) override;

 private:
  const Verbose verbose_;
  std::FILE* const file_;
  const Clock& clock_;
  std::optional<StepProgress> progress_;  // Set during a fit.
};

}  // namespace trireme::internal
