#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/base/usual_time.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/native_function.h"
#include "trireme/data/element.h"
#include "trireme/function/draws.h"
#include "trireme/ps/step_program.h"

namespace trireme::internal {

// An executor that ends before those who use it. Thread-safe.
class EndingExecutor {
 public:
  explicit EndingExecutor(Executor& executor) : executor_(&executor) {}

  // False, and the work is not taken, after end().
  bool submit(Work work);
  void end();

 private:
  Mutex mutex_;
  Executor* executor_ ABSL_GUARDED_BY(mutex_);
};

// A closure as it comes to a worker.
struct ClosureCall {
  uint64_t sequence = 0;  // the first of `repeat`
  uint32_t program = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  std::vector<at::Tensor> tensors;
  std::vector<uint64_t> resources;
  std::vector<uint32_t> variants;
  uint32_t repeat = 1;
};

// What became of it.
struct ClosureAnswer {
  ClosureOutcome outcome = make_status(ErrorCode::kInternal, "it has not run");
  // If no program that it may use takes the elements that it drew: these, one list for each draw.
  // They are kept for it until it comes again. The outcome means nothing then.
  std::vector<std::vector<Element>> drawn = {};
  // How long it kept others from running: drawing and its operators, or all of its turn.
  Duration busy = {};
};

// What a program draws from one resource.
struct ClosureDraw {
  size_t first_input = 0;
  std::vector<ElementSpec> elements;
};

struct ClosureHostOptions {
  uint64_t coordinator = 0;
  std::string task;               // of this worker, for errors
  std::vector<uint64_t> servers;  // their incarnations
  int updates_at_once = 1;
};

// What a worker keeps for one coordinator: its programs, iterators, and the way to its variables. A
// closure is run as elements drawn, a pull, the operators and a push for each round of its program;
// pulls and pushes of several are on their way at once. Those that both read and change variables
// take turns: each sees what the one before it has changed. Thread-safe; held by what runs.
class ClosureHost : public std::enable_shared_from_this<ClosureHost> {
 public:
  ClosureHost(ClosureHostOptions options, std::unique_ptr<PsClient> servers,
              std::shared_ptr<EndingExecutor> executor);

  const ClosureHostOptions& options() const { return options_; }
  int servers() const { return servers_->servers(); }

  // `layouts` has one for each variable that is on servers. Blocks: it looks them up.
  absl::Status add_program(uint32_t id, std::shared_ptr<const GraphData> graph,
                           std::vector<std::optional<VariableLayout>> layouts,
                           std::vector<ClosureDraw> draws);
  // A function of this binary.
  absl::Status add_native_program(uint32_t id, const std::string& name);

  void drop_program(uint32_t id);

  // One that is there is left as it is.
  absl::Status add_resource(uint64_t id, std::shared_ptr<ElementSource> source);
  void drop_resource(uint64_t id);

  // Calls back once, when all have ended. NOT_FOUND if it does not know a program or a resource.
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<ClosureAnswer>>)>;
  void run(std::vector<ClosureCall> closures, uint64_t watermark, std::stop_source stop, Done done);
  // Whether run() will be over, but for what it waits for, sooner than another thread can be woken.
  bool is_quick(const std::vector<ClosureCall>& closures);
  void cancel_below(uint64_t sequence);

 private:
  struct Program {
    std::string function;
    std::shared_ptr<const StepProgram> steps;
    const NativeBody* native = nullptr;  // in place of all else
    std::vector<std::optional<PsVariable>> variables;
    std::vector<ClosureDraw> draws;
    size_t inputs = 0;
    size_t drawn_inputs = 0;
    size_t own = 0;  // variables that come with each closure
    bool takes_turns = false;
    // Of drawing and its operators.
    mutable UsualTime usual_time{std::chrono::milliseconds(1)};
  };
  // What a closure has drawn and cannot use yet.
  struct Kept {
    Draws draws;
    uint32_t repetition = 0;  // that it is for
  };
  class Batch;
  class Run;

  absl::StatusOr<std::vector<std::shared_ptr<const Program>>> programs_of(const ClosureCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status check(const Program& program, const ClosureCall& call);
  std::vector<Kept> take_kept_below(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ElementSources> sources_of(const ClosureCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Those that take turns: now, or when another has left.
  void enter(std::shared_ptr<Run> run);
  void leave();

  const ClosureHostOptions options_;
  const std::unique_ptr<PsClient> servers_;
  const std::shared_ptr<EndingExecutor> executor_;

  Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<const Program>> programs_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<ElementSource>> resources_ ABSL_GUARDED_BY(mutex_);
  uint64_t cancelled_below_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Kept> kept_ ABSL_GUARDED_BY(mutex_);  // by the closure's sequence
  std::set<Batch*> batches_ ABSL_GUARDED_BY(mutex_);
  int turns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Run>> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
