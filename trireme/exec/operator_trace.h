#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/clock.h"

namespace trireme::internal {

struct NodePlan;  // graph/plan.h

struct TimeSpan {
  Time begin, end;
};

// A call to other processes that an operator of a step made. The call may run while later operators
// compute.
struct CommunicationSpan {
  std::string name;    // tag of the call
  std::string engine;  // name of the implementation that carried it out: "ring"
  int64_t bytes = 0;   // size of the tensor that was given to it
  TimeSpan call;       // time in which it was carried out, without its time in a queue
  TimeSpan wait;       // time for which the step waited for it
};

// The communication of a step. It is exposed while the step waits for one of its calls, and hidden
// behind the operators otherwise.
struct CommunicationTotals {
  size_t calls = 0;
  int64_t bytes = 0;
  Duration time{};     // sum of the times of the calls
  Duration exposed{};  // part of it that is exposed

  // Returns the share that is hidden, from 0 to 1; 0 without any communication.
  double hidden_share() const;
};

// Records when each operator of a run began and ended, and the communication of the run. Not
// thread-safe; a traced run uses one thread.
class OperatorTrace {
 public:
  // Makes a trace that of the run which this thread executes, until it is destroyed.
  class Recording {
   public:
    // `trace` is null for a run that is not traced.
    explicit Recording(OperatorTrace* trace);
    ~Recording();

    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    OperatorTrace* const outer_;
  };

  // Returns the trace of the run which this thread executes; null if it is not traced.
  static OperatorTrace* current();

  // Adds the run of one operator. `index` is the node's number in the graph.
  void add(const NodePlan& node, size_t index, const TimeSpan& time);
  // Adds a call, once it is complete.
  void add(CommunicationSpan call) { calls_.push_back(std::move(call)); }

  CommunicationTotals communication() const;

  // Returns the trace in the JSON format that chrome://tracing and Perfetto open. Times are in
  // microseconds since the first operator began. Calls are in a row of their own, which ends with
  // the event "hidden_communication"; its arguments are the totals.
  std::string chrome_json() const;

 private:
  struct OperatorSpan {
    std::string name;
    size_t node;
    TimeSpan time;
  };

  std::vector<OperatorSpan> operators_;
  std::vector<CommunicationSpan> calls_;
};

}  // namespace trireme::internal
