#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/job_membership.h"
#include "trireme/ps/pausable.h"

namespace trireme::internal {

// Lets steps pass, several at a time, unless it is closed. Thread-safe.
class StepGate {
 public:
  // One step. Blocks while the gate is closed.
  class Step {
   public:
    explicit Step(StepGate& gate) : gate_(gate) { gate_.enter(); }
    ~Step() { gate_.leave(); }

    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    StepGate& gate_;
  };

  // Closes the gate and blocks until the steps under way have ended. Waits first if the gate is
  // closed. Returns false at `limit`, and the gate is as before.
  bool close(Time limit);
  void open();

 private:
  void enter();
  void leave();

  Mutex mutex_;
  CondVar changed_;
  int steps_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of steps under way.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Holds all updates of a program paused: those of its own steps and of its pausables, such as a
// coordinator. Destroying it resumes all of them. While it exists, the thread that holds it must
// not change variables by steps of the program itself, which wait for its end.
class BackendPause {
 public:
  // Closes `gate` in close().
  explicit BackendPause(std::shared_ptr<StepGate> gate) : gate_(std::move(gate)) {}
  ~BackendPause() {
    if (closed_) gate_->open();
  }

  BackendPause(const BackendPause&) = delete;
  BackendPause& operator=(const BackendPause&) = delete;

  // Holds the program's own steps paused. Returns false if they have not ended at `limit`.
  bool close(Time limit) { return closed_ = gate_->close(limit); }
  void add(std::unique_ptr<Pausable::Pause> pause) { pauses_.push_back(std::move(pause)); }
  void add(const PausedWriter& writer) { writers_.push_back(writer); }
  // Returns the writers of the program, and the sequences below which their updates are decided.
  std::vector<PausedWriter> fences() const;

 private:
  const std::shared_ptr<StepGate> gate_;
  bool closed_ = false;  // True once the gate was closed.
  std::vector<std::unique_ptr<Pausable::Pause>> pauses_;
  std::vector<PausedWriter> writers_;
};

// Raises a fence for the updates of a writer of the job and blocks until all servers have confirmed
// it. Returns an error that names a server that did not, at `limit` at the latest.
absl::Status confirm_writer_fence(JobMembership& membership, const PausedWriter& writer,
                                  Time limit);

}  // namespace trireme::internal
