#include "trireme/ps/variable_store.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "trireme/base/executor.h"
#include "trireme/base/status.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/observe/metrics.h"
#include "trireme/runtime/part_step.h"

namespace trireme {
namespace {

using testing::HasSubstr;

std::shared_ptr<StoredVariable> stored(VariableStore& store, const std::string& name) {
  return value_or_throw(store.lookup("job", name));
}

TEST(VariableStore, TheFirstCreatorInitialises) {
  VariableStore store;
  const auto first = value_or_throw(store.create("job", "w", at::ones({2, 3})));
  const auto second = value_or_throw(store.create("job", "w", at::zeros({2, 3})));
  EXPECT_EQ(first, second);
  EXPECT_EQ(first, value_or_throw(store.find("job", "w")));
  EXPECT_TRUE(second->tensor.equal(at::ones({2, 3})));
  EXPECT_NE(value_or_throw(store.create("other", "w", at::zeros({2, 3}))), first);

  const absl::Status status = store.create("job", "w", at::ones({3})).status();
  EXPECT_EQ(error_code(status), ErrorCode::kAlreadyExists);
  EXPECT_THAT(
      describe(status),
      HasSubstr("variable 'w': container 'job' already has it as float32 [2, 3]; it cannot be "
                "created again as float32 [3]. Use another container"));
}

TEST(VariableStore, CopiesTheInitialValue) {
  VariableStore store;
  at::Tensor mine = at::ones({4});
  const auto variable = value_or_throw(store.create("job", "w", mine));
  mine.fill_(7);
  EXPECT_TRUE(variable->tensor.equal(at::ones({4})));
}

TEST(VariableStore, RemovesVariablesAndContainers) {
  VariableStore store;
  for (const char* name : {"a", "b"}) value_or_throw(store.create("job", name, at::ones({8})));
  value_or_throw(store.create("other", "c", at::ones({8})));
  const uint64_t handle = stored(store, "a")->handle;
  EXPECT_EQ(store.bytes(), 96u);
  // A repetition does nothing.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(store.remove("job", {handle}).ok());
  EXPECT_EQ(error_code(store.lookup(std::vector<uint64_t>{handle}).status()), ErrorCode::kNotFound);
  EXPECT_THAT(describe(store.find("job", "a").status()),
              HasSubstr("variable 'a': container 'job' has no such variable on this server"));
  store.drop_container("job");
  EXPECT_FALSE(store.find("job", "b").ok());
  EXPECT_EQ(store.list().size(), 1u);
  EXPECT_EQ(store.bytes(), 32u);
}

TEST(VariableStore, RejectsVariablesBeyondTheMemoryLimit) {
  VariableStore store({.memory_limit = 100});
  value_or_throw(store.create("job", "a", at::ones({16})));
  const absl::Status status = store.create("job", "b", at::ones({10})).status();
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted);
  EXPECT_EQ(describe(status),
            "variable 'b': it needs 40 bytes, but 64 of the limit of 100 bytes are taken; shard it "
            "over more servers or raise the limit");
  EXPECT_TRUE(store.create("job", "c", at::ones({9})).ok());
  EXPECT_EQ(error_code(store.set_optimizer(*stored(store, "a"), internal::make_rule("adam", {}))),
            ErrorCode::kResourceExhausted);
  EXPECT_TRUE(store.remove("job", {stored(store, "a")->handle}).ok());
  EXPECT_TRUE(store.create("job", "b", at::ones({10})).ok());
}

TEST(VariableStore, CountsTheStateOfOptimizers) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::ones({8})));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(store.set_optimizer(*stored(store, "w"), internal::make_rule("adam", {})).ok());
    EXPECT_EQ(store.bytes(), 96u);
  }
  EXPECT_EQ(error_code(store.set_optimizer(*stored(store, "w"), internal::make_rule("sgd", {}))),
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(store.bytes(), 96u);
  store.drop_container("job");
  EXPECT_EQ(store.bytes(), 0u);
}

// remove() and set_optimizer() of two clients may overlap: the variable was found before it was
// removed, and its optimizer is set after.
TEST(VariableStore, AnOptimizerThatIsSetAfterTheRemovalIsNotCounted) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::ones({8})));
  const auto found = stored(store, "w");
  EXPECT_TRUE(store.remove("job", {found->handle}).ok());
  const absl::Status status = store.set_optimizer(*found, internal::make_rule("adam", {}));
  EXPECT_EQ(error_code(status), ErrorCode::kNotFound) << describe(status);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(VariableStore, RejectsAnOptimizerThatCannotUpdateTheVariable) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::ones({8}, at::kLong)));
  const absl::Status status =
      store.set_optimizer(*stored(store, "w"), internal::make_rule("adam", {}));
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      describe(status),
      HasSubstr("variable 'w': the optimizer adam cannot update a variable of dtype int64"));
  EXPECT_EQ(store.bytes(), 64u);
}

TEST(StoredVariable, AppliesUpdates) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::ones({3, 2})));
  StoredVariable& variable = *stored(store, "w");
  const auto apply = [&](Update update) {
    throw_if_error(variable.check(update));
    value_or_throw(variable.apply(update, std::nullopt, std::nullopt));
  };
  const at::Tensor ids = at::full({2}, 2, at::kLong);
  apply({.values = at::ones({3, 2})});
  apply({.ids = ids, .values = at::ones({2, 2})});  // the same row twice
  at::Tensor expected = at::full({3, 2}, 2.0);
  expected[2].fill_(4);
  EXPECT_TRUE(variable.tensor.equal(expected)) << variable.tensor;
  apply({.kind = Update::Kind::kAssign, .ids = ids, .values = at::zeros({2, 2})});
  expected[2].fill_(0);
  EXPECT_TRUE(variable.tensor.equal(expected));
  apply({.kind = Update::Kind::kAssign, .values = at::zeros({3, 2})});
  EXPECT_TRUE(variable.tensor.equal(at::zeros({3, 2})));
  EXPECT_EQ(variable.stats().updates, 4u);

  EXPECT_EQ(error_code(variable.check({.values = at::ones({2, 3})})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      error_code(variable.check({.ids = at::full({1}, 3, at::kLong), .values = at::ones({1, 2})})),
      ErrorCode::kOutOfRange);
  EXPECT_EQ(
      error_code(variable.check({.kind = Update::Kind::kGradient, .values = at::ones({3, 2})})),
      ErrorCode::kFailedPrecondition);
}

TEST(StoredVariable, ChecksWhatCanBeApplied) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::ones({3, 2})));
  StoredVariable& variable = *stored(store, "w");
  throw_if_error(store.set_optimizer(variable, internal::make_rule("adam", {{"amsgrad", 1}})));
  const Update rows{.kind = Update::Kind::kGradient,
                    .ids = at::full({1}, 2, at::kLong),
                    .values = at::ones({1, 2})};
  const absl::Status status = variable.check(rows);
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(describe(status), HasSubstr("variable 'w': AMSGrad is not defined for sparse"));
  EXPECT_TRUE(variable.check({.kind = Update::Kind::kGradient, .values = at::ones({3, 2})}).ok());

  const auto bits =
      value_or_throw(store.make("job", "bits", {c10::ScalarType::Bits8, {4}}, [](at::Tensor&) {}));
  const at::Tensor values = at::empty({4}, c10::ScalarType::Bits8);
  EXPECT_THAT(describe(bits.variable->check({.values = values})),
              HasSubstr("variable 'bits': variables of dtype bits8 cannot be added to"));
  EXPECT_TRUE(bits.variable->check({.kind = Update::Kind::kAssign, .values = values}).ok());
}

TEST(StoredVariable, ARateCountsForOneUpdateOnly) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::zeros({1})));
  StoredVariable& variable = *stored(store, "w");
  throw_if_error(store.set_optimizer(variable, internal::make_rule("sgd", {{"lr", 1}})));
  const Update gradient{.kind = Update::Kind::kGradient, .values = at::ones({1})};
  value_or_throw(variable.apply(gradient, std::nullopt, 0.25));
  EXPECT_EQ(variable.tensor.item<float>(), -0.25);
  value_or_throw(variable.apply(gradient, std::nullopt, std::nullopt));
  EXPECT_EQ(variable.tensor.item<float>(), -1.25);
}

uint64_t version_of(StoredVariable& variable) {
  at::Tensor contents = at::empty_like(variable.tensor);
  return variable.read({}, contents.data_ptr());
}

TEST(StoredVariable, AVersionRisesWithEveryChangeAndWithNothingElse) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::zeros({4})));
  StoredVariable& variable = *stored(store, "w");
  const auto budget = std::make_shared<SnapshotBudget>(1 << 20);
  const auto writer = std::make_shared<Writer>();
  const Update update{.values = at::ones({4})};
  const auto push = [&](uint64_t sequence) {
    return variable.apply(update, StoredVariable::Push{writer, PushId{1, sequence, 0}},
                          std::nullopt);
  };
  const uint64_t first = value_or_throw(push(7));
  EXPECT_EQ(version_of(variable), first);
  const StoredVariable::Snapshot snapshot = variable.snapshot(budget);
  EXPECT_EQ(snapshot.version, first);

  EXPECT_EQ(value_or_throw(push(7)), first) << "a repetition";
  writer->raise_watermark(600);
  EXPECT_EQ(error_code(push(7).status()), ErrorCode::kAborted);
  variable.forget_pushes();
  throw_if_error(store.set_optimizer(variable, internal::make_rule("sgd", {})));
  const uint64_t second = version_of(variable);
  EXPECT_GT(second, first) << "the optimizer is a part of the variable";
  throw_if_error(store.set_optimizer(variable, internal::make_rule("sgd", {})));
  EXPECT_FALSE(store.set_optimizer(variable, internal::make_rule("adam", {})).ok());
  EXPECT_EQ(version_of(variable), second);

  const uint64_t third = value_or_throw(variable.apply(update, std::nullopt, std::nullopt));
  EXPECT_EQ(third, second + 1);
  EXPECT_EQ(variable.snapshot(budget).version, third);
  EXPECT_TRUE(snapshot.contents.equal(at::ones({4}))) << "a snapshot does not change";
}

// Returns the part of a session's graph that adds its input to variable 'w'.
std::shared_ptr<internal::RegisteredPart> part_that_adds(const at::Tensor& like) {
  internal::GraphBuilder builder("add");
  proto::GraphDef& def = builder.mutable_def();
  proto::Variable* variable = def.add_variables();
  variable->set_name("w");
  variable->set_written(true);
  internal::set_type(like, variable->mutable_type());
  def.set_inputs(1);
  const uint32_t contents = builder.add_value(proto::Value::VARIABLE, 0, like);
  const uint32_t input = builder.add_value(proto::Value::INPUT, 0, like);
  proto::Node* node = builder.add_node("aten::add_.Tensor");
  node->add_arguments()->set_value(contents);
  node->add_arguments()->set_value(input);
  node->add_arguments()->set_integer(1);
  node->add_results()->set_none(true);
  auto part = std::make_shared<internal::RegisteredPart>();
  part->plan = value_or_throw(internal::PartPlan::make(builder.finish()));
  return part;
}

TEST(StoredVariable, OperatorsOfSessionsTakeVersionsToo) {
  VariableStore store;
  const auto hosted = value_or_throw(store.create("job", "w", at::zeros({4})));
  StoredVariable& variable = *stored(store, "w");
  const auto budget = std::make_shared<SnapshotBudget>(1 << 20);
  const uint64_t before = variable.snapshot(budget).version;
  Metrics metrics;
  internal::StepGauges gauges(metrics);
  InlineExecutor executor;
  std::optional<absl::Status> ended;
  const auto step =
      std::make_shared<internal::PartStep>(part_that_adds(variable.tensor), 1, gauges);
  step->start({.tensors = {at::ones({4})}, .deadline = after(std::chrono::seconds(20))}, {hosted},
              executor,
              [&](absl::StatusOr<internal::PartResult> result) { ended = result.status(); });
  ASSERT_TRUE(ended.has_value());
  throw_if_error(*ended);
  const StoredVariable::Snapshot after_step = variable.snapshot(budget);
  EXPECT_EQ(after_step.version, before + 1);
  EXPECT_TRUE(after_step.contents.equal(at::ones({4}))) << "not the snapshot from before";
}

// Returns the bytes of a tensor in pieces of `piece` bytes, which may cut elements.
ScatteredTensor scatter(const at::Tensor& tensor, size_t piece) {
  const auto bytes = std::make_shared<std::string>(
      static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  ScatteredTensor scattered;
  for (size_t done = 0; done < bytes->size(); done += piece) {
    scattered.append({reinterpret_cast<const uint8_t*>(bytes->data()) + done,
                      std::min(piece, bytes->size() - done)},
                     bytes);
  }
  return scattered;
}

TEST(StoredVariable, AppliesUpdatesFromPieces) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kInt}) {
    for (const size_t piece : {1, 3, 7, 64, 1001}) {
      VariableStore store;
      const at::Tensor delta = at::arange(600).remainder(100).to(dtype).reshape({200, 3});
      value_or_throw(store.create("job", "w", at::ones({200, 3}, dtype)));
      StoredVariable& variable = *stored(store, "w");
      Update update{.values = at::empty_like(delta, at::kMeta), .scattered = scatter(delta, piece)};
      throw_if_error(variable.check(update));
      value_or_throw(variable.apply(update, std::nullopt, std::nullopt));
      EXPECT_TRUE(variable.tensor.equal(delta.add(1))) << dtype << " in pieces of " << piece;
      update.kind = Update::Kind::kAssign;
      value_or_throw(variable.apply(update, std::nullopt, std::nullopt));
      EXPECT_TRUE(variable.tensor.equal(delta)) << dtype << " in pieces of " << piece;
    }
  }
}

// Every update adds the same number to every element, so a reader that sees two different values
// has seen half of an update.
TEST(StoredVariable, ReadersNeverSeeHalfAnUpdate) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::zeros({1 << 16})));
  StoredVariable& variable = *stored(store, "w");
  const at::Tensor delta = at::ones({1 << 16});
  constexpr int kUpdates = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kUpdates; ++k) {
        EXPECT_TRUE(variable.apply({.values = delta}, std::nullopt, std::nullopt).ok());
      }
    });
    threads.emplace_back([&] {
      std::vector<float> seen(1 << 16);
      for (int k = 0; k < kUpdates; ++k) {
        variable.read({}, seen.data());
        EXPECT_EQ(seen.front(), seen.back());
        EXPECT_EQ(seen.front(), seen[seen.size() / 2]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(variable.tensor.equal(at::full({1 << 16}, 2.0 * kUpdates)));
}

}  // namespace
}  // namespace trireme
