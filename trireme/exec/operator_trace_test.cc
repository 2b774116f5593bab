#include "trireme/exec/operator_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/graph/small_graph.h"

namespace trireme::internal {
namespace {

using std::chrono::microseconds;
using testing::DoubleEq;
using testing::DoubleNear;
using testing::UnorderedElementsAre;

TimeSpan traced_time(int begin, int end) {
  return {Time() + microseconds(begin), Time() + microseconds(end)};
}

CommunicationSpan bucket(const std::string& name, const TimeSpan& call, const TimeSpan& wait) {
  return {.name = name, .engine = "ring", .bytes = 100, .call = call, .wait = wait};
}

TEST(OperatorTrace, WithoutCommunicationNothingIsHidden) {
  const CommunicationTotals totals = OperatorTrace().communication();
  EXPECT_EQ(totals.calls, 0);
  EXPECT_EQ(totals.hidden_share(), 0);
}

TEST(OperatorTrace, ACallThatEndsBeforeTheWaitIsHidden) {
  OperatorTrace trace;
  trace.add(bucket("a", traced_time(10, 30), traced_time(40, 41)));
  EXPECT_EQ(trace.communication().exposed, microseconds(0));
  EXPECT_EQ(trace.communication().hidden_share(), 1);
}

TEST(OperatorTrace, ACallThatRunsDuringTheWaitIsExposed) {
  OperatorTrace trace;
  trace.add(bucket("a", traced_time(11, 29), traced_time(10, 30)));
  EXPECT_EQ(trace.communication().exposed, microseconds(18));
  EXPECT_EQ(trace.communication().hidden_share(), 0);
}

TEST(OperatorTrace, AWaitForOneCallExposesThoseBeforeIt) {
  OperatorTrace trace;
  trace.add(bucket("a", traced_time(10, 30), traced_time(60, 61)));
  trace.add(bucket("b", traced_time(30, 50), traced_time(20, 51)));
  const CommunicationTotals totals = trace.communication();
  EXPECT_EQ(totals.calls, 2);
  EXPECT_EQ(totals.bytes, 200);
  EXPECT_EQ(totals.time, microseconds(40));
  EXPECT_EQ(totals.exposed, microseconds(30));
  EXPECT_THAT(totals.hidden_share(), DoubleNear(0.25, 1e-9));
}

TEST(OperatorTrace, HasCallsInARowOfTheirOwnAndTheShareThatIsHidden) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  OperatorTrace trace;
  trace.add(plan->nodes[0], 0, traced_time(100, 150));
  trace.add(plan->nodes[1], 1, traced_time(150, 200));
  trace.add(bucket("step: bucket 1", traced_time(120, 190), traced_time(155, 195)));
  std::vector<std::string> spans;
  nlohmann::json figure;
  const nlohmann::json json = nlohmann::json::parse(trace.chrome_json());
  for (const nlohmann::json& event : json["traceEvents"]) {
    if (event["ph"] == "X") {
      spans.push_back(event["tid"].dump() + " " + event["name"].get<std::string>() + " " +
                      event["ts"].dump() + " " + event["dur"].dump() + " " + event["args"].dump());
    }
    if (event["name"] == "hidden_communication") figure = event;
  }
  EXPECT_THAT(spans,
              UnorderedElementsAre(
                  "1 aten::add.Tensor 0.0 50.0 {\"node\":0}", "1 aten::relu 50.0 50.0 {\"node\":1}",
                  "1 wait for step: bucket 1 55.0 40.0 {}",
                  "2 step: bucket 1 20.0 70.0 {\"bytes\":100,\"engine\":\"ring\"}"));
  EXPECT_EQ(figure["ts"], 90);
  EXPECT_THAT(figure["args"]["share"].get<double>(), DoubleNear(0.5, 1e-9));
  EXPECT_THAT(figure["args"]["communication_us"].get<double>(), DoubleEq(70));
  EXPECT_THAT(figure["args"]["exposed_us"].get<double>(), DoubleEq(35));
  EXPECT_EQ(figure["args"]["calls"], 1);
  EXPECT_EQ(figure["args"]["bytes"], 100);
}

TEST(OperatorTrace, IsThatOfTheInnermostRunOfTheThread) {
  OperatorTrace trace;
  EXPECT_EQ(OperatorTrace::current(), nullptr);
  {
    const OperatorTrace::Recording recording(&trace);
    EXPECT_EQ(OperatorTrace::current(), &trace);
    {
      const OperatorTrace::Recording not_traced(nullptr);
      EXPECT_EQ(OperatorTrace::current(), nullptr);
    }
    EXPECT_EQ(OperatorTrace::current(), &trace);
    std::thread([] { EXPECT_EQ(OperatorTrace::current(), nullptr); }).join();
  }
  EXPECT_EQ(OperatorTrace::current(), nullptr);
}

}  // namespace
}  // namespace trireme::internal
