// How a function is compared with eager code. Each step runs twice, first as eager code, then
// captured, and each side continues from its own state after the step before. In this process both
// sides use the same variables, so the contents of one side are put into them before its step; a
// session has variables of its own. The state that steps change is saved, and put back at the
// end (checked_state.h).
//
// The first step that differs is explained (difference_locator.h): the state from before it is put
// back, the body is captured again, and the graph is compared with the one that was replayed.
#include "trireme/runtime/check.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/runtime/checked_state.h"
#include "trireme/runtime/difference_locator.h"

namespace trireme {
namespace internal {
namespace {

using DrawCounts = std::vector<size_t>;

// Sets eager mode while it lives.
class EagerModeScope {
 public:
  explicit EagerModeScope(bool eagerly) : before_(runs_eagerly()) { run_eagerly(eagerly); }
  ~EagerModeScope() { run_eagerly(before_); }

  EagerModeScope(const EagerModeScope&) = delete;
  EagerModeScope& operator=(const EagerModeScope&) = delete;

 private:
  const bool before_;
};

// Puts the number of the next step back when it is destroyed.
class StepCount {
 public:
  explicit StepCount(const CheckedFunction& function)
      : function_(function), first_(function.step()) {}
  ~StepCount() { function_.set_step(first_); }

  StepCount(const StepCount&) = delete;
  StepCount& operator=(const StepCount&) = delete;

  uint64_t first() const { return first_; }

 private:
  const CheckedFunction& function_;
  const uint64_t first_;
};

void check_can_be_compared(const FunctionStep& step, const CheckOptions& options) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw Error(code, why, {"", absl::StrCat("function '", step.function, "'")});
  };
  if (options.steps < 1) {
    refuse(ErrorCode::kInvalidArgument,
           absl::StrCat("check() was asked for ", options.steps, " steps; ask for 1 or more"));
  }
  for (const auto& variable : step.variables) {
    if (variable->backend != nullptr) {
      refuse(ErrorCode::kFailedPrecondition,
             absl::StrCat("it cannot be compared with eager code: its variable '", variable->name,
                          "' lives on ", absl::StrJoin(variable->backend->devices(*variable), ", "),
                          ", where its strategy keeps it, so its body cannot run as eager code. "
                          "Check it with variables that are made outside of the strategy's scope"));
    }
    const std::string holder = held_elsewhere(*variable);
    if (options.session == nullptr && !holder.empty()) {
      refuse(ErrorCode::kFailedPrecondition,
             absl::StrCat("its variable '", variable->name, "' is held by ", holder,
                          "; pass the session to check() as CheckOptions::session"));
    }
  }
}

// Returns the variables of the step, followed by all others whose contents are in the program:
// eager code may change them although the graph does not.
CheckedVariables variables_to_compare(const FunctionStep& step) {
  CheckedVariables variables = step.variables;
  for (auto& variable : live_variables()) {
    if (variable->backend != nullptr || !held_elsewhere(*variable).empty()) continue;
    if (std::ranges::find(step.variables, variable) == step.variables.end()) {
      variables.push_back(std::move(variable));
    }
  }
  return variables;
}

// One check. The function must outlive it.
class Check {
 public:
  Check(const CheckedFunction& function, const CheckOptions& options, const FunctionStep& step)
      : function_(function),
        options_(options),
        variables_(variables_to_compare(step)),
        count_(function),
        session_(options.session == nullptr
                     ? nullptr
                     : std::make_unique<SessionState>(*options.session, step.variables)),
        program_(variables_) {}

  CheckReport run() {
    Contents eager_state = program_.read();
    if (session_) std::ranges::copy(session_->initial(), eager_state.begin());
    Contents captured_state = eager_state;
    for (int i = 0; i < options_.steps; ++i) {
      const DrawCounts drawn = function_.sources.positions();
      std::optional<Outcome> eager = run_eagerly(i, eager_state);
      if (!eager) break;
      function_.sources.rewind(drawn);
      Outcome captured = run_captured(i, captured_state);
      ++report_.steps_compared;
      if (const auto object = first_difference(captured, *eager)) {
        report_.equal = false;
        report_.step = i;
        explain(*object, eager_state, drawn);
        break;
      }
      eager_state = std::move(eager->variables);
      captured_state = std::move(captured.variables);
    }
    return report_;
  }

 private:
  // Results of a step, contents of the variables after it, and positions of the sources.
  struct Outcome {
    Contents results;
    Contents variables;
    DrawCounts drawn;
  };

  // Runs a step as eager code, from these contents of the variables. Returns nullopt if the data of
  // an iterator has ended.
  std::optional<Outcome> run_eagerly(int step, const Contents& state) {
    program_.write(state);
    function_.set_step(count_.first() + step);
    try {
      Contents results = run_body();
      return Outcome{std::move(results), program_.read(), function_.sources.positions()};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEndOfData || function_.sources.positions().empty()) throw;
      return std::nullopt;
    }
  }

  Contents run_body() {
    const EagerModeScope eager(true);
    const ProgramTensorsScope program(variables_);
    return function_.run();
  }

  // Runs a step of the captured function. A session continues from its own contents, and changes
  // none of the variables that it does not hold.
  Outcome run_captured(int step, const Contents& state) {
    if (!session_) program_.write(state);
    function_.set_step(count_.first() + step);
    Outcome outcome;
    outcome.results = session_ ? function_.run_in_session(*options_.session) : function_.run();
    outcome.drawn = function_.sources.positions();
    outcome.variables = session_ ? state : program_.read();
    if (session_) std::ranges::copy(session_->read(), outcome.variables.begin());
    return outcome;
  }

  // Returns the first object that differs, and puts its name and difference into the report.
  std::optional<DifferentObject> first_difference(const Outcome& captured, const Outcome& eager) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < eager.drawn.size(); ++i) {
      const std::string object =
          absl::StrCat("the number of elements drawn from ", function_.sources.name(i));
      if (differs(object, captured.drawn[i] == eager.drawn[i] ? 0 : kInfinity)) return {{}};
    }
    if (differs("the number of results",
                captured.results.size() == eager.results.size() ? 0 : kInfinity)) {
      return {{}};
    }
    for (size_t i = 0; i < eager.results.size(); ++i) {
      if (differs(absl::StrCat("result ", i),
                  relative_difference(captured.results[i], eager.results[i]))) {
        return {{.result = static_cast<int64_t>(i)}};
      }
    }
    for (size_t i = 0; i < variables_.size(); ++i) {
      if (differs(absl::StrCat("variable '", variables_[i]->name, "'"),
                  relative_difference(captured.variables[i], eager.variables[i]))) {
        return {{.variable = variables_[i].get()}};
      }
    }
    return std::nullopt;
  }

  // Adds the difference of an object to the report. Returns true if it is too large.
  bool differs(const std::string& object, double difference) {
    if (difference <= options_.tolerance) {
      report_.difference = std::max(report_.difference, difference);
      return false;
    }
    report_.object = object;
    report_.difference = difference;
    return true;
  }

  // Looks for the operator and the cause of a difference. `state` and `drawn` are those of the
  // eager side before the step.
  void explain(const DifferentObject& object, const Contents& state, const DrawCounts& drawn) {
    RepeatableStep step;
    step.restart = [&] {
      program_.write(state);
      function_.sources.rewind(drawn);
      function_.set_step(count_.first() + report_.step);
    };
    step.run_eagerly = [&] { run_body(); };
    step.preview = function_.preview;
    step.call = function_.call;
    step.variables = [&](const FunctionStep& repeated) {
      Contents contents;
      for (const auto& variable : repeated.variables) {
        contents.push_back(
            state.at(std::ranges::find(variables_, variable) - variables_.begin()).clone());
      }
      return contents;
    };
    DifferenceCause found =
        locate_difference(step, object, options_.tolerance, /*in_session=*/session_ != nullptr);
    report_.op = std::move(found.op);
    report_.cause = std::move(found.cause);
  }

  const CheckedFunction& function_;
  const CheckOptions& options_;
  const CheckedVariables variables_;  // those of the step first, which a session holds
  const StepCount count_;
  const std::unique_ptr<const SessionState> session_;  // null if captured steps run here
  const ProgramState program_;
  CheckReport report_;
};

}  // namespace

// One source. Keeps the elements that were drawn from the real one.
class RepeatableSources::Source : public DrawnElements {
 public:
  explicit Source(std::shared_ptr<ElementSource> real)
      : DrawnElements(real->name(), {}), real_(std::move(real)) {}

  NumberedElement draw() override {
    if (next_ == elements_.size()) elements_.push_back(real_->draw());
    return elements_[next_++];
  }
  void put_back(NumberedElement) override { --next_; }
  uint64_t resource() const override { return real_->resource(); }

  size_t position() const { return next_; }
  void set_position(size_t position) { next_ = position; }
  // Puts everything that was drawn back into the real source.
  void put_all_back() {
    for (; !elements_.empty(); elements_.pop_back()) real_->put_back(std::move(elements_.back()));
    next_ = 0;
  }

 private:
  const std::shared_ptr<ElementSource> real_;
  std::vector<NumberedElement> elements_;
  size_t next_ = 0;  // index of the element to hand out next
};

RepeatableSources::RepeatableSources(const ElementSources& sources) {
  for (const auto& source : sources) {
    sources_.push_back(std::make_shared<Source>(source));
    replacements_[source] = sources_.back();
  }
}

RepeatableSources::~RepeatableSources() {
  for (const auto& source : sources_) source->put_all_back();
}

std::vector<size_t> RepeatableSources::positions() const {
  std::vector<size_t> positions;
  for (const auto& source : sources_) positions.push_back(source->position());
  return positions;
}

void RepeatableSources::rewind(const std::vector<size_t>& positions) const {
  for (size_t i = 0; i < sources_.size(); ++i) sources_[i]->set_position(positions[i]);
}

std::string RepeatableSources::name(size_t source) const {
  return sources_[source]->name();
}

CheckReport check_function(const CheckedFunction& function, const CheckOptions& options) {
  if (is_capturing()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "check() was called in a captured function; call it outside");
  }
  const SuspendDeviceCheck no_device_check;
  const EagerModeScope captured(false);
  const auto step = function.preview();
  check_can_be_compared(*step, options);
  return Check(function, options, *step).run();
}

}  // namespace internal

std::string CheckReport::to_string() const {
  if (equal) {
    return absl::StrCat("equal to eager code in ", steps_compared,
                        " steps, with a relative difference of at most ", difference);
  }
  std::string text = absl::StrCat("step ", step, " differs from eager code: ", object,
                                  " has a relative difference of ", difference, ".");
  if (!op.empty()) absl::StrAppend(&text, "\nFirst operator that differs: ", op, ".");
  if (!cause.empty()) absl::StrAppend(&text, "\nLikely cause: ", cause, ".");
  return text;
}

}  // namespace trireme
