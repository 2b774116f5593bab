// A master may evict a graph that its client still uses. It then runs nothing and says so, and the
// session registers the graph again. The master here is a small one that evicts on command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <set>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/function/variable.h"
#include "trireme/rpc/server.h"
#include "trireme/runtime/graph_service.h"
#include "trireme/runtime/session.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;

// The state of the master, which its service shares with the test. Thread-safe.
class ForgetfulMaster {
 public:
  void evict_all() {
    MutexLock lock(mutex_);
    graphs_.clear();
  }
  void set_variables_exist(bool exist) {
    MutexLock lock(mutex_);
    exist_ = exist;
  }
  // Returns the numbers under which graphs were registered, in order.
  std::vector<uint64_t> registrations() const {
    MutexLock lock(mutex_);
    return registrations_;
  }

  RegisterGraphResponse register_graph(const RegisterGraphRequest& request) {
    MutexLock lock(mutex_);
    graphs_.insert(request.graph());
    registrations_.push_back(request.graph());
    RegisterGraphResponse response;
    for (const auto& variable : request.def().variables()) {
      auto* place = response.add_variables();
      place->set_name(variable.name());
      place->set_task("/job:worker/task:0");
      place->set_incarnation(1);
      place->set_exists(exist_);
    }
    return response;
  }
  bool has(uint64_t graph) const {
    MutexLock lock(mutex_);
    return graphs_.contains(graph);
  }

 private:
  mutable Mutex mutex_;
  bool exist_ ABSL_GUARDED_BY(mutex_) = true;
  std::set<uint64_t> graphs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> registrations_ ABSL_GUARDED_BY(mutex_);
};

// Answers each step with its inputs.
class ForgetfulService final : public Service {
 public:
  explicit ForgetfulService(ForgetfulMaster& master) : master_(master) {}

  std::vector<Method> methods() override {
    const auto answer_empty = [](ServerCall call) { call.respond(Message()); };
    return {{internal::kOpenSession, Roles::all(), Repeats::kHarmless, answer_empty},
            {internal::kCloseSession, Roles::all(), Repeats::kHarmless, answer_empty},
            {internal::kRegisterGraph, Roles::all(), Repeats::kHarmless,
             [this](ServerCall call) {
               const auto request = parse_body<RegisterGraphRequest>(call.request());
               if (!request.ok()) return call.respond(request.status());
               call.respond(make_message(master_.register_graph(*request)));
             }},
            {internal::kRunStep, Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
               const auto request = parse_body<RunStepRequest>(call.request());
               if (!request.ok()) return call.respond(request.status());
               RunStepResponse response;
               response.set_unknown_graph(!master_.has(request->graph()));
               std::vector<Tensor> outputs;
               if (!response.unknown_graph()) outputs = std::move(call.request().tensors);
               call.respond(make_message(response, std::move(outputs)));
             }}};
  }

 private:
  ForgetfulMaster& master_;
};

class SessionRegistersAgain : public testing::Test {
 protected:
  std::unique_ptr<RpcServer> start_server() {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<ForgetfulService>(master_));
    return value_or_throw(
        RpcServer::start({.address = "127.0.0.1:0", .task = "/job:worker/task:0", .incarnation = 1},
                         std::move(services)));
  }

  ForgetfulMaster master_;
  const std::unique_ptr<RpcServer> server_ = start_server();
  Session session_{absl::StrCat("grpc://", server_->address())};
};

TEST_F(SessionRegistersAgain, AnEvictedGraphIsRegisteredAgainUnderItsNumber) {
  const auto step = function("step", [](const Tensor& x) { return x * 1; });
  const Tensor x = torch::arange(4);
  EXPECT_TRUE(session_.run(step, x).equal(x));
  EXPECT_TRUE(session_.run(step, x).equal(x));
  EXPECT_EQ(master_.registrations().size(), 1u);
  for (size_t registered = 2; registered < 5; ++registered) {
    master_.evict_all();
    EXPECT_TRUE(session_.run(step, x).equal(x));
    EXPECT_EQ(master_.registrations(),
              std::vector<uint64_t>(registered, master_.registrations()[0]));
  }
}

TEST_F(SessionRegistersAgain, AStartedStepRegistersItsGraphAgainToo) {
  const auto step = function("step", [](const Tensor& x) { return x * 1; });
  const Tensor x = torch::arange(4);
  EXPECT_TRUE(session_.run(step, x).equal(x));
  master_.evict_all();
  std::vector<std::future<Tensor>> results;
  for (int i = 0; i < 20; ++i) results.push_back(session_.start(step, x));
  for (auto& result : results) {
    ASSERT_EQ(result.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_TRUE(result.get().equal(x));
  }
  EXPECT_GE(master_.registrations().size(), 2u);
}

TEST_F(SessionRegistersAgain, AVariableThatWasLostMeanwhileIsNamed) {
  const Variable v("v", torch::zeros({}));
  const auto step = function("step", [&](const Tensor& x) { return x + v.read(); });
  const Tensor x = torch::ones({});
  session_.run(step, x);
  master_.set_variables_exist(false);
  master_.evict_all();
  EXPECT_THAT(error_text([&] { session_.run(step, x); }),
              HasSubstr("/job:worker/task:0: variable 'v': it no longer exists"));
}

}  // namespace
}  // namespace trireme
