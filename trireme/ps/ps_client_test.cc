#include "trireme/ps/ps_client.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "trireme/base/ids.h"
#include "trireme/ps/test_servers.h"
#include "trireme/rpc/fault_injector.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Kind = Update::Kind;

constexpr uint64_t kWriter = 77;

PsVariable make(PsClient& client, const std::string& name, const at::Tensor& initial,
                int64_t shards = 1) {
  ShardPlacer placer(client.servers(), Placement::kRoundRobin, FixedPartitioner(shards));
  const auto layouts = placer.place({{name, initial.sizes().vec(), initial.scalar_type()}});
  return value_or_throw(client.create({{.layout = layouts[0], .initial = initial}}))[0];
}

at::Tensor pull(PsClient& client, const PsVariable& variable, const at::Tensor& rows = {}) {
  return value_or_throw(client.pull({{variable, rows}}))[0];
}

// Pushes with a writer of its own.
absl::Status push_once(PsClient& client, const std::vector<PsPush>& pushes) {
  const uint64_t writer = new_incarnation();
  throw_if_error(client.begin_writer(writer));
  return client.push(pushes, {.id = {writer, 1, 0}});
}

at::Tensor ids(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

// Pushes and pulls in the same calls.
absl::StatusOr<std::optional<std::vector<at::Tensor>>> push_then_pull(
    PsClient& client, const std::vector<PsPush>& pushes, const PushId& id,
    std::vector<PsPull> pulls) {
  std::promise<absl::StatusOr<std::optional<std::vector<at::Tensor>>>> pulled;
  client.push_then_pull(pushes, {.id = id}, std::move(pulls),
                        [&](auto result) { pulled.set_value(std::move(result)); });
  return pulled.get_future().get();
}

TEST(PsClient, PullsAndPushesWholeVariables) {
  TestServers servers(3);
  const auto client = servers.client();
  const at::Tensor initial = at::arange(13 * 4, at::kFloat).reshape({13, 4});
  const PsVariable sharded = make(*client, "sharded", initial, 5);
  const PsVariable plain = make(*client, "plain", at::ones({3}, at::kLong));
  const PsVariable scalar = make(*client, "scalar", at::full({}, 7.0, at::kDouble));
  const PsVariable empty = make(*client, "empty", at::zeros({0, 3}));
  const PsVariable large = make(*client, "large", at::ones({300, 1000}), 2);
  EXPECT_EQ(sharded.layout().shards.size(), 5u);

  auto got = value_or_throw(client->pull({{sharded}, {plain}, {scalar}, {empty}, {large}}));
  EXPECT_TRUE(got[0].equal(initial));
  EXPECT_TRUE(got[1].equal(at::ones({3}, at::kLong)));
  EXPECT_TRUE(got[2].equal(at::full({}, 7.0, at::kDouble)));
  EXPECT_TRUE(got[3].equal(at::zeros({0, 3})));
  EXPECT_TRUE(got[4].equal(at::ones({300, 1000})));
  EXPECT_LE(servers.calls("Pull"), 3u) << "one call per server";

  throw_if_error(client->begin_writer(kWriter));
  throw_if_error(client->push(
      {{.variable = sharded, .values = at::ones({13, 4})},
       {.variable = plain, .values = at::ones({3}, at::kLong)},
       {.variable = scalar, .kind = Kind::kAssign, .values = at::full({}, 9.0, at::kDouble)},
       {.variable = large, .values = at::ones({300, 1000})}},
      {.id = {kWriter, 1, 0}}));
  EXPECT_LE(servers.calls("Push"), 3u) << "one call per server";
  got = value_or_throw(client->pull({{sharded}, {plain}, {scalar}, {large}}));
  EXPECT_TRUE(got[0].equal(initial.add(1)));
  EXPECT_TRUE(got[1].equal(at::full({3}, 2, at::kLong)));
  EXPECT_EQ(got[2].item<double>(), 9);
  EXPECT_TRUE(got[3].equal(at::full({300, 1000}, 2.0)));
  EXPECT_TRUE(value_or_throw(client->pull({})).empty());
}

TEST(PsClient, PullsAndPushesRows) {
  TestServers servers(2);
  const auto client = servers.client();
  const at::Tensor initial = at::arange(10 * 3, at::kFloat).reshape({10, 3});
  const PsVariable table = make(*client, "table", initial, 4);
  EXPECT_TRUE(
      pull(*client, table, ids({9, 0, 4, 0})).equal(initial.index_select(0, ids({9, 0, 4, 0}))));
  EXPECT_TRUE(pull(*client, table, ids({})).equal(at::zeros({0, 3})));
  const uint64_t before = servers.calls("Pull");
  pull(*client, table, ids({0, 1}));
  EXPECT_EQ(servers.calls("Pull"), before + 1) << "only the shard that has these rows";

  throw_if_error(push_once(
      *client, {{.variable = table, .rows = ids({2, 9, 2}), .values = at::ones({3, 3})}}));
  at::Tensor expected = initial.clone();
  expected[2] += 2;
  expected[9] += 1;
  EXPECT_TRUE(pull(*client, table).equal(expected));
  const at::Tensor sparse =
      at::sparse_coo_tensor(ids({5, 6}).unsqueeze(0), at::ones({2, 3}), {10, 3}, at::kFloat);
  throw_if_error(push_once(*client, {{.variable = table, .values = sparse}}));
  expected[5] += 1;
  expected[6] += 1;
  throw_if_error(push_once(
      *client,
      {{.variable = table, .kind = Kind::kAssign, .rows = ids({1}), .values = at::zeros({1, 3})}}));
  expected[1].fill_(0);
  EXPECT_TRUE(pull(*client, table).equal(expected));
}

TEST(PsClient, OpensVariablesOfAnotherClientByTheirLayout) {
  TestServers servers(2);
  const auto chief = servers.client(), worker = servers.client();
  const PsVariable made = make(*chief, "w", at::ones({6, 2}), 3);
  const PsVariable found = value_or_throw(worker->open({made.layout()}))[0];
  throw_if_error(push_once(*worker, {{.variable = found, .values = at::ones({6, 2})}}));
  EXPECT_TRUE(pull(*chief, made).equal(at::full({6, 2}, 2.0)));
  // The first client to create a variable initialises it.
  const PsVariable again = make(*worker, "w", at::zeros({6, 2}), 3);
  EXPECT_TRUE(pull(*worker, again).equal(at::full({6, 2}, 2.0)));
  VariableLayout other = made.layout();
  other.sizes[1] = 3;
  EXPECT_THAT(describe(worker->open({other}).status()), HasSubstr("with another shape or dtype"));

  throw_if_error(chief->remove({made}));
  EXPECT_EQ(error_code(worker->open({made.layout()}).status()), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(worker->pull({{found}}).status()), ErrorCode::kNotFound);
  make(*chief, "v", at::ones({2}));
  throw_if_error(chief->drop_container());
  EXPECT_EQ(
      error_code(chief->open({{.name = "v", .sizes = {2}, .shards = {{"v", 0, {0, 2}}}}}).status()),
      ErrorCode::kNotFound);
}

TEST(PsClient, AppliesAPushOnce) {
  TestServers servers(2);
  const auto first = servers.client(), second = servers.client();
  const PsVariable w = make(*first, "w", at::zeros({4}, at::kLong), 2);
  const PsVariable same = value_or_throw(second->open({w.layout()}))[0];
  const at::Tensor one = at::ones({4}, at::kLong);
  const auto push = [&](PsClient& client, const PsVariable& variable, uint64_t sequence,
                        uint32_t round, uint64_t watermark = 0) {
    return client.push({{.variable = variable, .values = one}},
                       {.id = {kWriter, sequence, round}, .watermark = watermark});
  };
  EXPECT_EQ(error_code(push(*first, w, 1, 0)), ErrorCode::kAborted) << "the writer has not begun";
  throw_if_error(first->begin_writer(kWriter));
  EXPECT_TRUE(push(*first, w, 1, 0).ok());
  EXPECT_TRUE(push(*first, w, 1, 0).ok());
  EXPECT_TRUE(push(*second, same, 1, 0).ok()) << "another worker ran the closure again";
  EXPECT_TRUE(pull(*first, w).equal(one));
  EXPECT_TRUE(push(*second, same, 1, 1).ok()) << "the second push of the closure";
  EXPECT_TRUE(push(*second, same, 2, 0, /*watermark=*/2).ok());
  EXPECT_TRUE(pull(*first, w).equal(one.mul(3)));
  EXPECT_EQ(error_code(push(*first, w, 1, 2)), ErrorCode::kAborted) << "below the watermark";
  throw_if_error(first->end_writer(kWriter));
  throw_if_error(first->end_writer(kWriter));
  EXPECT_EQ(error_code(push(*second, same, 3, 0)), ErrorCode::kAborted);
  EXPECT_TRUE(pull(*first, w).equal(one.mul(3)));
}

TEST(PsClient, AppliesAPushOnceDespiteLostAndRepeatedMessages) {
  TestServers servers(2);
  const auto chief = servers.client();
  const PsVariable w = make(*chief, "w", at::zeros({8}, at::kLong), 2);
  throw_if_error(chief->begin_writer(kWriter));
  constexpr int kWorkers = 4, kPushes = 40;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      const auto faults = std::make_shared<FaultInjector>(
          worker, std::vector<FaultRule>{{.method = "/trireme.Variables/Push",
                                          .lose_request = 0.1,
                                          .lose_response = 0.1,
                                          .duplicate = 0.1,
                                          .reorder = 0.1}});
      const auto client = servers.client(faults, {.attempt_time = milliseconds(100),
                                                  .first_delay = milliseconds(5),
                                                  .longest_delay = milliseconds(50)});
      const PsVariable mine = value_or_throw(client->open({w.layout()}))[0];
      for (int i = 0; i < kPushes; ++i) {
        at::Tensor delta = at::zeros({8}, at::kLong);
        delta[(worker + i) % 8] = 1;
        const uint64_t sequence = i * kWorkers + worker;
        EXPECT_TRUE(
            client->push({{.variable = mine, .values = delta}}, {.id = {kWriter, sequence, 0}})
                .ok());
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(pull(*chief, w).sum().item<int64_t>(), kWorkers * kPushes);
}

uint64_t counter(const TestServers& servers, const std::string& name) {
  return servers.context(0).metrics.counters().at(name);
}

TEST(PsClient, HoldsPushesBackWhileAServerCannotKeepUp) {
  constexpr int64_t kFloats = 2 << 20;  // 8 MiB
  constexpr int kPushes = 10;
  TestServers servers(1, {.push_bytes = 16 << 20});
  const auto client = servers.client_without_shared_memory();
  const PsVariable w = make(*client, "w", at::zeros({kFloats}));
  throw_if_error(client->begin_writer(kWriter));
  const auto hosted = value_or_throw(servers.context(0).variables->find("default", "w"));
  const at::Tensor delta = at::ones({kFloats});
  std::vector<std::shared_ptr<std::promise<absl::Status>>> pushed;
  {
    ReaderLock lock(hosted->mutex);  // nothing can be applied
    for (int i = 0; i < kPushes; ++i) {
      pushed.push_back(std::make_shared<std::promise<absl::Status>>());
      client->push(
          {{.variable = w, .values = delta}}, {.id = {kWriter, static_cast<uint64_t>(i), 0}},
          [answer = pushed.back()](absl::Status status) { answer->set_value(std::move(status)); });
    }
    // Two pushes fit into the budget. Only the first frames of the others have arrived.
    const Time limit = after(std::chrono::seconds(20));
    while (counter(servers, "ps/pushes_held_back") < kPushes - 2 && Clock::real().now() < limit) {
      std::this_thread::yield();
    }
    EXPECT_EQ(counter(servers, "ps/pushes_held_back"), kPushes - 2);
    EXPECT_LE(counter(servers, "rpc_server/trireme.Variables/Push/bytes_in"),
              (16 + (kPushes - 2) + 2) << 20);
  }
  for (auto& push : pushed) EXPECT_TRUE(push->get_future().get().ok());
  EXPECT_TRUE(pull(*client, w).equal(at::full({kFloats}, static_cast<double>(kPushes))));
}

TEST(PsClient, AppliesLargeUpdatesOfAllKinds) {
  TestServers servers(1);
  const auto client = servers.client_without_shared_memory();
  const at::Tensor values = at::arange(3 << 20, at::kFloat);  // 12 MiB
  const PsVariable large = make(*client, "large", values);
  const PsVariable trained = make(*client, "trained", values);
  const at::Tensor halves =
      at::ones({4 << 20}, at::kBFloat16);  // added by LibTorch, not from pieces
  const PsVariable half = make(*client, "half", halves);
  throw_if_error(client->set_optimizer({trained}, *internal::make_rule("sgd", {{"lr", 1.0}})));
  std::vector<PsVariable> small;  // together more than 4 MiB
  for (int i = 0; i < 100; ++i) {
    small.push_back(make(*client, "small_" + std::to_string(i), at::full({16000}, double(i))));
  }
  throw_if_error(client->begin_writer(kWriter));
  std::vector<PsPush> pushes = {{.variable = large, .values = values},
                                {.variable = half, .values = halves}};
  for (const PsVariable& variable : small) {
    pushes.push_back({.variable = variable, .values = at::ones({16000})});
  }
  throw_if_error(client->push(pushes, {.id = {kWriter, 0, 0}}));
  EXPECT_TRUE(pull(*client, large).equal(values.mul(2)));
  EXPECT_TRUE(pull(*client, half).equal(halves.mul(2)));
  for (size_t i = 0; i < small.size(); ++i) {
    EXPECT_TRUE(pull(*client, small[i]).equal(at::full({16000}, double(i + 1)))) << i;
  }
  // A push that has a gradient is not applied from pieces.
  throw_if_error(client->push({{.variable = large, .values = values},
                               {.variable = trained, .kind = Kind::kGradient, .values = values}},
                              {.id = {kWriter, 1, 0}}));
  EXPECT_TRUE(pull(*client, large).equal(values.mul(3)));
  EXPECT_TRUE(pull(*client, trained).equal(at::zeros({3 << 20})));
  throw_if_error(
      push_once(*client, {{.variable = large, .kind = Kind::kAssign, .values = values}}));
  EXPECT_TRUE(pull(*client, large).equal(values));
  EXPECT_THAT(describe(push_once(*client, {{.variable = large, .values = at::ones({2 << 20})}})),
              HasSubstr("the update is float32 [2097152], but it must be float32 [3145728]"));
}

TEST(PsClient, PullsBeyondTheBudgetWaitAndSucceed) {
  constexpr int kPulls = 12;
  TestServers servers(1, {.pull_bytes = 6 << 20});  // room for one pull of 4 MiB
  const auto client = servers.client_without_shared_memory();
  const PsVariable w = make(*client, "w", at::ones({1 << 20}));
  const auto hosted = value_or_throw(servers.context(0).variables->find("default", "w"));
  std::vector<std::shared_ptr<std::promise<at::Tensor>>> pulled(kPulls);
  {
    WriterLock lock(hosted->mutex);  // the pull that is admitted cannot be answered
    for (auto& result : pulled) {
      result = std::make_shared<std::promise<at::Tensor>>();
      client->pull({{w}}, [result](absl::StatusOr<std::vector<at::Tensor>> tensors) {
        result->set_value(value_or_throw(std::move(tensors))[0]);
      });
    }
    const Time limit = after(std::chrono::seconds(20));
    while (counter(servers, "ps/pulls_held_back") < kPulls - 1 && Clock::real().now() < limit) {
      std::this_thread::yield();
    }
    EXPECT_EQ(counter(servers, "ps/pulls_held_back"), kPulls - 1);
  }
  for (auto& result : pulled) EXPECT_TRUE(result->get_future().get().equal(at::ones({1 << 20})));
}

TEST(PsClient, ErrorsNameTaskAndVariable) {
  TestServers servers(1, {.memory_limit = 1000});
  const auto client = servers.client();
  const PsVariable w = make(*client, "w", at::ones({4, 2}));
  EXPECT_EQ(
      describe(client->create({{.layout = {"big", {1000}, at::kFloat, {{"big", 0, {0, 1000}}}}}})
                   .status()),
      "/job:ps/task:0: variable 'big': it needs 4000 bytes, but 32 of the limit of 1000 bytes "
      "are taken; shard it over more servers or raise the limit");
  EXPECT_EQ(describe(push_once(*client, {{.variable = w, .values = at::ones({4})}})),
            "variable 'w': the update is float32 [4], but it must be float32 [4, 2]");
  EXPECT_THAT(describe(push_once(
                  *client, {{.variable = w, .kind = Kind::kGradient, .values = at::ones({4, 2})}})),
              HasSubstr("/job:ps/task:0: variable 'w': a gradient was pushed to it, but it has no "
                        "optimizer"));
  EXPECT_EQ(describe(client->pull({{w, ids({4})}}).status()),
            "variable 'w': row 4 does not exist; it has 4 rows");
  servers.start(0);
  EXPECT_EQ(error_code(client->pull({{w}}).status()), ErrorCode::kIncarnationChanged);
}

TEST(PsClient, PullsAfterAPushInTheSameCalls) {
  TestServers servers(2);
  const auto client = servers.client();
  const PsVariable sharded = make(*client, "sharded", at::zeros({4, 3}), 2);
  const PsVariable medium = make(*client, "medium", at::zeros({200, 100}));  // more than a block
  throw_if_error(client->begin_writer(kWriter));
  const std::vector<PsPush> pushes = {{sharded, Kind::kAdd, {}, at::ones({4, 3})},
                                      {medium, Kind::kAdd, {}, at::ones({200, 100})}};
  const uint64_t pulls = servers.calls("Pull"), calls = servers.calls("Push");
  for (int times = 1; times <= 2; ++times) {  // The second is a repetition of the same push.
    const auto pulled = value_or_throw(
        push_then_pull(*client, pushes, {kWriter, 1, 0}, {{medium}, {sharded}, {medium}}));
    ASSERT_TRUE(pulled.has_value());
    ASSERT_EQ(pulled->size(), 3u);
    EXPECT_TRUE(pulled->at(0).equal(at::ones({200, 100})));
    EXPECT_TRUE(pulled->at(1).equal(at::ones({4, 3})));
    EXPECT_TRUE(pulled->at(2).equal(at::ones({200, 100})));
  }
  EXPECT_EQ(servers.calls("Pull"), pulls);
  EXPECT_EQ(servers.calls("Push"), calls + 4);
}

TEST(PsClient, PushesOnlyIfTheSameCallsCannotPull) {
  TestServers servers(2);
  const auto client = servers.client();
  const PsVariable first = make(*client, "first", at::zeros({2}));
  const PsVariable second = make(*client, "second", at::zeros({2}), 2);  // also on the other server
  const PsVariable large = make(*client, "large", at::zeros({1000, 300}));
  throw_if_error(client->begin_writer(kWriter));
  const std::vector<PsPush> to_first = {{first, Kind::kAdd, {}, at::ones({2})}};
  const std::vector<std::vector<PsPull>> impossible = {
      {}, {{second}}, {{first}, {second}}, {{first, ids({0})}}, {{first}, {large}}};
  uint64_t sequence = 0;
  for (const std::vector<PsPull>& pulls : impossible) {
    const auto pulled = push_then_pull(*client, to_first, {kWriter, ++sequence, 0}, pulls);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_FALSE(pulled->has_value()) << sequence;
    EXPECT_TRUE(pull(*client, first).equal(at::full({2}, static_cast<double>(sequence))));
  }
}

}  // namespace
}  // namespace trireme
