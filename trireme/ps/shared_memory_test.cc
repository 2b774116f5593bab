#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <stop_token>
#include <thread>

#include "trireme/base/ids.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/test_servers.h"
#include "trireme/rpc/fault_injector.h"

// Pulls and pushes through shared memory: they give the values of those over connections, and each
// push is applied once, whatever is lost.
namespace trireme {
namespace {

using std::chrono::milliseconds;
using Kind = Update::Kind;

constexpr uint64_t kSharingWriter = 77;
constexpr char kPullMethod[] = "/trireme.Variables/Pull";
constexpr char kPushMethod[] = "/trireme.Variables/Push";

PsVariable make_shared_variable(PsClient& client, const std::string& name,
                                const at::Tensor& initial, int64_t shards) {
  ShardPlacer placer(client.servers(), Placement::kRoundRobin, FixedPartitioner(shards));
  const auto layouts = placer.place({{name, initial.sizes().vec(), initial.scalar_type()}});
  return value_or_throw(client.create({{.layout = layouts[0], .initial = initial}}))[0];
}

at::Tensor pull_one(PsClient& client, const PsVariable& variable) {
  return value_or_throw(client.pull({{variable}}))[0];
}

TEST(SharedMemory, ValuesAreThoseOfConnections) {
  TestServers servers(2);
  const auto shared = servers.client();
  const auto plain = servers.client_without_shared_memory();
  // Shards that are large and whole, uneven, small, of one server, and of other dtypes.
  const std::vector<at::Tensor> initial = {at::rand({1001, 500}),
                                           at::rand({3, 100000}),
                                           at::rand({20, 20}),
                                           at::rand({300, 400}),
                                           at::randint(0, 99, {200, 300}),
                                           at::rand({2, 9000}, at::kDouble),
                                           at::rand({130, 1000}).to(at::kBFloat16)};
  const std::vector<int64_t> shards = {2, 2, 2, 1, 2, 2, 2};
  std::vector<PsVariable> variables;
  for (size_t i = 0; i < initial.size(); ++i) {
    variables.push_back(
        make_shared_variable(*shared, "v" + std::to_string(i), initial[i], shards[i]));
  }
  const auto pulls = [&] {
    std::vector<PsPull> pulls;
    for (const PsVariable& variable : variables) pulls.push_back({variable});
    return pulls;
  };
  throw_if_error(shared->begin_writer(kSharingWriter));
  for (uint64_t round = 1; round <= 3; ++round) {
    std::vector<PsPush> pushes;
    for (size_t i = 0; i < initial.size(); ++i) {
      pushes.push_back({.variable = variables[i],
                        .kind = round == 2 ? Kind::kAssign : Kind::kAdd,
                        .values = at::rand_like(initial[i], at::kFloat).to(initial[i].dtype())});
    }
    const uint64_t sent = servers.counted("Push", "bytes_in");
    throw_if_error(shared->push(pushes, {.id = {kSharingWriter, round, 0}}));
    EXPECT_LT(servers.counted("Push", "bytes_in") - sent, 8192u) << "the values are not sent";
    const uint64_t answered = servers.counted("Pull", "bytes_out");
    const auto got = value_or_throw(shared->pull(pulls()));
    const uint64_t small = servers.counted("Pull", "bytes_out") - answered;
    EXPECT_LT(small, 200u << 10) << "only small shards are sent";
    const auto expected = value_or_throw(plain->pull(pulls()));
    for (size_t i = 0; i < initial.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
    EXPECT_GT(servers.counted("Pull", "bytes_out") - answered, 4u << 20) << "these are";
  }
}

TEST(SharedMemory, GradientsAreAppliedByTheOptimizer) {
  TestServers servers(2);
  const auto shared = servers.client();
  const auto plain = servers.client_without_shared_memory();
  const at::Tensor initial = at::rand({600, 500});
  const PsVariable one = make_shared_variable(*shared, "one", initial, 2);
  const PsVariable two = make_shared_variable(*shared, "two", initial, 2);
  throw_if_error(shared->set_optimizer({one, two}, *internal::make_rule("adam", {{"lr", 0.01}})));
  throw_if_error(shared->begin_writer(kSharingWriter));
  for (uint64_t step = 1; step <= 4; ++step) {
    const at::Tensor gradient = at::rand({600, 500});
    const auto push = [&](PsClient& client, const PsVariable& variable, uint32_t round) {
      throw_if_error(
          client.push({{.variable = variable, .kind = Kind::kGradient, .values = gradient}},
                      {.id = {kSharingWriter, step, round}}));
    };
    push(*shared, one, 0);
    push(*plain, two, 1);
  }
  EXPECT_FALSE(pull_one(*shared, one).equal(initial));
  EXPECT_TRUE(pull_one(*shared, one).equal(pull_one(*plain, two)));
}

// A result of one shard never has half of an update, and results stay as they are while their
// memory is in use and others are pulled.
TEST(SharedMemory, PullsAreConsistentUnderConcurrentPushes) {
  TestServers servers(2);
  const auto client = servers.client();
  const PsVariable variable = make_shared_variable(*client, "w", at::zeros({400, 1000}), 2);
  throw_if_error(client->begin_writer(kSharingWriter));
  const std::jthread pusher([&](std::stop_token stop) {
    for (uint64_t i = 1; !stop.stop_requested(); ++i) {
      throw_if_error(client->push({{.variable = variable, .values = at::ones({400, 1000})}},
                                  {.id = {kSharingWriter, i, 0}, .watermark = i}));
    }
  });
  struct Seen {
    at::Tensor value;
    float first, second;  // values of the two shards
  };
  const Time limit = after(seconds(20));
  while (pull_one(*client, variable)[0][0].item<float>() == 0 && Clock::real().now() < limit) {
  }
  std::vector<Seen> seen;
  for (int i = 0; i < 50; ++i) {
    const at::Tensor value = pull_one(*client, variable);
    seen.push_back({value, value[0][0].item<float>(), value[399][0].item<float>()});
    if (seen.size() > 8) seen.erase(seen.begin());
    for (const auto& [kept, first, second] : seen) {
      ASSERT_TRUE(kept.slice(0, 0, 200).eq(first).all().item<bool>());
      ASSERT_TRUE(kept.slice(0, 200, 400).eq(second).all().item<bool>());
    }
  }
  EXPECT_GT(seen.back().first, 0);
}

// The oracle of exactly-once pushes: the sum of the variable is the number of pushes.
TEST(SharedMemory, PushesAreAppliedOnceWhateverIsLost) {
  TestServers servers(2);
  const std::vector<FaultRule> rules = {
      {.method = kPushMethod, .lose_request = 0.1, .lose_response = 0.3, .duplicate = 0.3},
      {.method = kPullMethod, .lose_response = 0.2, .duplicate = 0.3, .cut = 0.2}};
  const auto faults = std::make_shared<FaultInjector>(5, rules);
  const auto client =
      servers.client(faults, {.attempt_time = milliseconds(100), .first_delay = milliseconds(1)});
  const PsVariable variable =
      make_shared_variable(*client, "w", at::zeros({400, 500}, at::kLong), 2);
  throw_if_error(client->begin_writer(kSharingWriter));
  constexpr int kPushes = 25;
  at::Tensor total = at::zeros({400, 500}, at::kLong);
  std::vector<std::pair<at::Tensor, at::Tensor>> pulled;  // results, and copies of them
  for (uint64_t i = 1; i <= kPushes; ++i) {
    const at::Tensor delta = at::randint(0, 1000, {400, 500});
    throw_if_error(client->push({{.variable = variable, .values = delta}},
                                {.id = {kSharingWriter, i, 0}, .watermark = i}));
    total += delta;
    const at::Tensor value = pull_one(*client, variable);
    ASSERT_TRUE(value.equal(total)) << i;
    pulled.emplace_back(value, value.clone());
    if (pulled.size() > 5) pulled.erase(pulled.begin());
    for (const auto& [result, copy] : pulled) ASSERT_TRUE(result.equal(copy));
  }
  EXPECT_GT(faults->injected(), 20u);
  EXPECT_TRUE(pull_one(*servers.client_without_shared_memory(), variable).equal(total));
}

// A worker must not overwrite what a push still needs.
TEST(SharedMemory, PushesInFlightAreIndependent) {
  TestServers servers(2);
  const auto client = servers.client();
  const PsVariable variable = make_shared_variable(*client, "w", at::zeros({400, 500}), 2);
  throw_if_error(client->begin_writer(kSharingWriter));
  constexpr int kPushes = 40;
  std::vector<std::promise<absl::Status>> done(kPushes);
  for (int i = 0; i < kPushes; ++i) {
    client->push({{.variable = variable, .values = at::full({400, 500}, double(i))}},
                 {.id = {kSharingWriter, uint64_t(i) + 1, 0}},
                 [&done, i](absl::Status status) { done[i].set_value(std::move(status)); });
  }
  for (auto& push : done) {
    auto status = push.get_future();
    ASSERT_EQ(status.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    throw_if_error(status.get());
  }
  const double sum = kPushes * (kPushes - 1) / 2.0;
  EXPECT_TRUE(pull_one(*client, variable).equal(at::full({400, 500}, sum)));
}

}  // namespace
}  // namespace trireme
