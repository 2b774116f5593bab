#include "trireme/exec/operator_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {
namespace {

// Rows of the trace.
constexpr int kOperatorRow = 1;
constexpr int kCommunicationRow = 2;

thread_local OperatorTrace* current_trace = nullptr;

double microseconds(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

Duration overlap(const TimeSpan& a, const TimeSpan& b) {
  return std::max(std::min(a.end, b.end) - std::max(a.begin, b.begin), Duration::zero());
}

// The events of a trace in Chrome's format. Times are in microseconds since `start`.
class TraceEvents {
 public:
  explicit TraceEvents(Time start) : start_(start) {}

  void name_row(int row, const char* name) { add("M", row, "thread_name", {{"name", name}}); }
  void add_span(int row, const std::string& name, const TimeSpan& time,
                nlohmann::json arguments = nlohmann::json::object()) {
    nlohmann::json& event = add("X", row, name, std::move(arguments));
    event["ts"] = microseconds(time.begin - start_);
    event["dur"] = microseconds(time.end - time.begin);
  }
  void add_instant(int row, const std::string& name, Time time, nlohmann::json arguments) {
    nlohmann::json& event = add("i", row, name, std::move(arguments));
    event["ts"] = microseconds(time - start_);
    event["s"] = "t";  // It belongs to its row only.
  }

  std::string dump() const { return nlohmann::json{{"traceEvents", events_}}.dump(); }

 private:
  nlohmann::json& add(const char* phase, int row, const std::string& name,
                      nlohmann::json arguments) {
    return events_.emplace_back(nlohmann::json{
        {"name", name}, {"ph", phase}, {"pid", 1}, {"tid", row}, {"args", std::move(arguments)}});
  }

  const Time start_;
  nlohmann::json events_ = nlohmann::json::array();
};

}  // namespace

double CommunicationTotals::hidden_share() const {
  return time > Duration::zero() ? 1 - microseconds(exposed) / microseconds(time) : 0;
}

OperatorTrace::Recording::Recording(OperatorTrace* trace)
    : outer_(std::exchange(current_trace, trace)) {}

OperatorTrace::Recording::~Recording() {
  current_trace = outer_;
}

OperatorTrace* OperatorTrace::current() {
  return current_trace;
}

void OperatorTrace::add(const NodePlan& node, size_t index, const TimeSpan& time) {
  operators_.push_back({operator_name(node.op), index, time});
}

CommunicationTotals OperatorTrace::communication() const {
  CommunicationTotals totals{.calls = calls_.size()};
  for (const CommunicationSpan& span : calls_) {
    totals.bytes += span.bytes;
    totals.time += span.call.end - span.call.begin;
    // A step that waits for one call may also wait for those that are carried out before it.
    for (const CommunicationSpan& other : calls_) totals.exposed += overlap(span.call, other.wait);
  }
  return totals;
}

std::string OperatorTrace::chrome_json() const {
  TraceEvents events(operators_.empty() ? Time() : operators_.front().time.begin);
  for (const OperatorSpan& span : operators_) {
    events.add_span(kOperatorRow, span.name, span.time, {{"node", span.node}});
  }
  if (calls_.empty()) return events.dump();

  events.name_row(kOperatorRow, "operators");
  events.name_row(kCommunicationRow, "communication");
  Time end = calls_.front().call.end;
  for (const CommunicationSpan& span : calls_) {
    events.add_span(kCommunicationRow, span.name, span.call,
                    {{"bytes", span.bytes}, {"engine", span.engine}});
    events.add_span(kOperatorRow, absl::StrCat("wait for ", span.name), span.wait);
    end = std::max(end, span.call.end);
  }
  const CommunicationTotals totals = communication();
  events.add_instant(kCommunicationRow, "hidden_communication", end,
                     {{"share", totals.hidden_share()},
                      {"communication_us", microseconds(totals.time)},
                      {"exposed_us", microseconds(totals.exposed)},
                      {"calls", totals.calls},
                      {"bytes", totals.bytes}});
  return events.dump();
}

}  // namespace trireme::internal
