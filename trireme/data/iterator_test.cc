#include "trireme/data/iterator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/data/dataset.h"
#include "trireme/data/example_element.h"
#include "trireme/exec/replay.h"
#include "trireme/function/variable.h"
#include "trireme/graph/plan.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Variable number(const std::string& name) {
  return Variable(name, at::zeros({}, at::kLong), {.trainable = false});
}

int64_t value(const Variable& variable) {
  return variable.read().item<int64_t>();
}

TEST(Iterator, CopiesShareOnePosition) {
  Iterator a = Dataset::range(3).iterator(), b = a;
  EXPECT_EQ(a.next().item<int64_t>(), 0);
  EXPECT_EQ(b.next().item<int64_t>(), 1);
  EXPECT_EQ(a.next().item<int64_t>(), 2);
}

TEST(Iterator, TheEndIsAnErrorThatSaysWhatToDo) {
  Iterator numbers = Dataset::range(1, 2).iterator();
  numbers.next();
  for (int i = 0; i < 2; ++i) {
    const Error error = error_of([&] { numbers.next(); });
    EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
    EXPECT_STREQ(error_code_name(error.code()), "END_OF_DATA");
    EXPECT_THAT(error.what(), AllOf(HasSubstr("iterator over range(1, 2)"), HasSubstr("repeat()")));
  }
  EXPECT_EQ(error_code(to_status(error_of([&] { numbers.next(); }))), ErrorCode::kEndOfData);
}

TEST(Iterator, KeepsTheElementIfAskedForTheWrongNumberOfTensors) {
  Iterator pairs = Dataset::from_tensors({at::arange(2), at::arange(2)}).iterator();
  const Error error = error_of([&] { pairs.next(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("(int64[], int64[])"), HasSubstr("next<2>()")));
  auto [x, y] = pairs.next<2>();
  EXPECT_EQ(x.item<int64_t>(), 0);
}

TEST(Iterator, ThreadsDrawEachElementOnce) {
  constexpr int64_t kCount = 4000;
  Iterator numbers = Dataset::range(kCount).shuffle(100).iterator();
  std::vector<std::vector<int64_t>> drawn(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : drawn) {
      threads.emplace_back([&mine, numbers]() mutable {
        while (auto element = numbers.next_optional()) {
          mine.push_back((*element)[0].item<int64_t>());
        }
      });
    }
  }
  std::vector<bool> seen(kCount);
  size_t total = 0;
  for (const auto& mine : drawn) {
    total += mine.size();
    for (int64_t i : mine) seen[i] = true;
  }
  EXPECT_EQ(total, seen.size());
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kCount);
}

TEST(Iterator, IgnoresDeviceScopes) {
  const Tensor rows = at::arange(12).view({2, 6}).t();
  const DeviceScope on("/job:ps/task:0");
  Iterator sums = Dataset::from_tensors({rows})
                      .shuffle(6)
                      .batch(3)
                      .map([](const Tensor& x) { return x.sum(); })
                      .iterator();
  const Tensor first = sums.next(), second = sums.next();
  const DeviceScope off("");
  EXPECT_EQ(*first.const_data_ptr<int64_t>() + *second.const_data_ptr<int64_t>(), 66);
}

TEST(IteratorInFunction, DrawsInEachCall) {
  const Variable sum = number("sum");
  auto add = function("add", [&](Iterator& numbers) { sum.assign_add(numbers.next()); });
  Iterator numbers = Dataset::range(1, 6).iterator();
  for (int i = 0; i < 5; ++i) add(numbers);
  EXPECT_EQ(value(sum), 15);
  EXPECT_EQ(add.captures(), 1);
  const Error error = error_of([&] { add(numbers); });
  EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
  EXPECT_EQ(value(sum), 15);
  // An iterator over other elements of the same shape uses the same graph.
  Iterator others = Dataset::range(100, 101).iterator();
  add(others);
  EXPECT_EQ(value(sum), 115);
  EXPECT_EQ(add.captures(), 1);
}

TEST(IteratorInFunction, DrawsAsOftenAsTheBodyAsks) {
  auto f = function("f", [&](Iterator& numbers, int times) {
    Tensor result = at::zeros({}, at::kLong);
    for (int i = 0; i < times; ++i) result = result.mul(10).add(numbers.next());
    return result;
  });
  Iterator numbers = Dataset::range(1, 10).iterator();
  EXPECT_EQ(f(numbers, 3).item<int64_t>(), 123);
  EXPECT_EQ(f(numbers, 1).item<int64_t>(), 4);
  EXPECT_EQ(f(numbers, 0).item<int64_t>(), 0);
  EXPECT_EQ(f(numbers, 3).item<int64_t>(), 567);
  EXPECT_EQ(f.captures(), 3);
  EXPECT_EQ(error_of([&] { f(numbers, 3); }).code(), ErrorCode::kEndOfData);
  EXPECT_EQ(f(numbers, 1).item<int64_t>(), 8) << "the elements of the failed call were put back";
  EXPECT_EQ(numbers.next().item<int64_t>(), 9);
  EXPECT_EQ(f(numbers, 0).item<int64_t>(), 0) << "it draws nothing, so the end does not matter";
  EXPECT_EQ(f.captures(), 3);
}

TEST(IteratorInFunction, TakesSeveralIteratorsAmongOtherArguments) {
  auto f =
      function("f", [](Iterator& a, const Tensor& x, std::vector<Iterator>& more, Iterator& b) {
        const Tensor first = a.next();
        const auto [y, z] = more[0].next<2>();
        const Tensor second = b.next(), third = b.next();
        return std::make_pair(first.mul(100) + second.mul(10) + third, x + y - z);
      });
  Iterator a = Dataset::range(1, 9).iterator(), b = Dataset::range(1, 9).iterator();
  std::vector<Iterator> more = {
      Dataset::from_tensors({at::arange(3), at::arange(3).mul(2)}).iterator()};
  const Tensor x = at::ones({2});
  EXPECT_EQ(f(a, x, more, b).first.item<int64_t>(), 112);
  const auto [first, second] = f(a, x, more, b);
  EXPECT_EQ(first.item<int64_t>(), 234);
  EXPECT_TRUE(second.equal(at::zeros({2})));
  // One iterator for two arguments is drawn from in the order in which the body asks.
  Iterator same = Dataset::range(1, 9).iterator();
  EXPECT_EQ(f(same, x, more, same).first.item<int64_t>(), 123);
  EXPECT_EQ(f.captures(), 2);
}

TEST(IteratorInFunction, CapturesASmallerLastBatchSeparately) {
  const Variable sum = number("sum");
  auto add = function("add", [&](Iterator& batches) { sum.assign_add(batches.next().sum()); });
  Iterator batches = Dataset::range(100).shuffle(100).batch(32).iterator();
  while (error_of([&] { add(batches); }).code() == ErrorCode::kOk) {
  }
  EXPECT_EQ(value(sum), 4950) << "some element was lost or drawn twice";
  EXPECT_EQ(add.captures(), 2);
}

TEST(IteratorInFunction, DrawsAsManyElementsAsTheirShapesRequire) {
  auto f = function("f", [](Iterator& batches) {
    Tensor rows = batches.next();
    while (rows.size(0) < 4) rows = at::cat({rows, batches.next()});
    return rows.sum();
  });
  Iterator fours = Dataset::range(8).batch(4).iterator(),
           twos = Dataset::range(8).batch(2).iterator();
  EXPECT_EQ(f(fours).item<int64_t>(), 6);
  EXPECT_EQ(f(twos).item<int64_t>(), 6);
  EXPECT_EQ(f(fours).item<int64_t>(), 22);
  EXPECT_EQ(f(twos).item<int64_t>(), 22);
}

TEST(IteratorInFunction, CaptureAloneDrawsNothing) {
  auto f = function("f", [](Iterator& numbers) { return numbers.next() + numbers.next(); });
  Iterator numbers = Dataset::range(4).iterator();
  EXPECT_THAT(f.graph(numbers).explain(), HasSubstr("2 inputs"));
  EXPECT_EQ(f.step(), 0u);
  EXPECT_EQ(f(numbers).item<int64_t>(), 1);
  EXPECT_EQ(f(numbers).item<int64_t>(), 5);
  EXPECT_EQ(f.captures(), 1);
}

TEST(IteratorInFunction, PutsElementsBackIfTheCaptureFails) {
  auto careless = function("careless", [](Iterator& numbers) {
    return numbers.next() * numbers.next().item<int64_t>();
  });
  Iterator numbers = Dataset::range(3).iterator();
  EXPECT_EQ(error_of([&] { careless(numbers); }).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(numbers.next().item<int64_t>(), 0);
  EXPECT_EQ(numbers.next().item<int64_t>(), 1);
}

TEST(IteratorInFunction, RejectsDrawsThatWouldBeFrozen) {
  Iterator numbers = Dataset::range(3).iterator();
  auto outside = function("outside", [&] { return numbers.next() + 0; });
  EXPECT_THAT(error_of([&] { outside(); }).what(),
              AllOf(HasSubstr("iterator over range(0, 3)"), HasSubstr("tr::Iterator&")));
  int calls = 0;
  auto counter = function("counter", [&](Iterator& n) {
    Tensor sum = n.next();
    for (int i = 0; i < calls; ++i) sum = sum + n.next();
    ++calls;
    return sum;
  });
  Iterator endless = Dataset::range(3).repeat().iterator();
  EXPECT_THAT(error_of([&] { counter(endless); }).what(),
              AllOf(HasSubstr("function 'counter'"), HasSubstr("same number of elements")));
  auto loop = function("loop", [](Iterator& n) {
    for (;;) n.next();
  });
  EXPECT_THAT(error_of([&] { loop(endless); }).what(), HasSubstr("more than 65536"));
  EXPECT_EQ(numbers.next().item<int64_t>(), 0);
  EXPECT_EQ(endless.next().item<int64_t>(), 0);
}

TEST(IteratorInFunction, NestedFunctionsDrawToo) {
  auto inner = function("inner", [](Iterator& numbers) { return numbers.next().mul(2); });
  auto outer = function("outer", [&](Iterator& numbers) {
    const Tensor first = inner(numbers);
    return first + numbers.next();
  });
  Iterator numbers = Dataset::range(1, 5).iterator();
  EXPECT_EQ(outer(numbers).item<int64_t>(), 4);
  EXPECT_EQ(outer(numbers).item<int64_t>(), 10);
}

TEST(IteratorInFunction, MayAcceptTheEndOfTheData) {
  int64_t sum = 0;
  const auto draws = [](Iterator& numbers) {
    const auto element = numbers.next_optional();
    return element ? (*element)[0] + 1 : at::Tensor();
  };
  auto optional = function("optional", draws);
  Iterator numbers = Dataset::range(4).iterator();
  for (at::Tensor number; (number = optional(numbers)).defined();) sum += number.item<int64_t>();
  EXPECT_EQ(sum, 1 + 2 + 3 + 4);
  EXPECT_EQ(optional.captures(), 1);
  EXPECT_FALSE(optional(numbers).defined());
  EXPECT_EQ(optional.step(), 4u) << "a call at the end is not a step";
  // The first call may be at the end already.
  Iterator none = Dataset::range(0).iterator();
  EXPECT_FALSE(function("none", draws)(none).defined());
  auto pair = function("pair", [](Iterator& n) {
    const auto first = n.next_optional();
    return std::pair((*first)[0] + 0, n.next() + 0);
  });
  Iterator odd = Dataset::range(1).iterator();
  EXPECT_EQ(error_of([&] { pair(odd); }).code(), ErrorCode::kEndOfData)
      << "it does not accept the end for the second element";
  EXPECT_EQ(odd.next().item<int64_t>(), 0) << "the first element was put back";
}

TEST(IteratorInFunction, WorksAsAnOrdinaryIteratorWhenRunEagerly) {
  auto f = function("f", [](Iterator& numbers) {
    const auto element = numbers.next_optional();
    return element ? (*element)[0] + 0 : at::ones({}, at::kLong).neg();
  });
  Iterator numbers = Dataset::range(1, 3).iterator();
  run_eagerly(true);
  EXPECT_EQ(f(numbers).item<int64_t>(), 1);
  EXPECT_EQ(f(numbers).item<int64_t>(), 2);
  EXPECT_EQ(f(numbers).item<int64_t>(), -1);
  run_eagerly(false);
}

TEST(IteratorInFunction, ConcurrentCallsDrawEachElementOnce) {
  auto twice = function("twice", [](Iterator& numbers) { return numbers.next() + numbers.next(); });
  Iterator numbers = Dataset::range(400).iterator();
  std::atomic<int64_t> sum = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 50; ++j) sum += twice(numbers).item<int64_t>();
      });
    }
  }
  EXPECT_EQ(sum, 400 * 399 / 2);
}

// Works as a coordinator does: the step is prepared here, and its elements are drawn on a worker.
TEST(IteratorPlaceholder, APreparedStepListsItsDraws) {
  const Dataset dataset =
      Dataset::from_tensors({at::arange(12).view({6, 2}), at::arange(6)}).batch(2);
  auto f = function("f", [](const Tensor& scale, Iterator& batches, Iterator& numbers) {
    auto [x, y] = batches.next<2>();
    auto [u, v] = batches.next<2>();
    return ((x + u).sum(1) + y + v) * scale + numbers.next();
  });
  Iterator here = Dataset::range(7, 9).iterator();
  const auto step = internal::Access<decltype(f)>::prepare(
      f, at::ones({}, at::kLong),
      internal::Access<Iterator>::placeholder({internal::zeros(dataset.element_spec())}, 42), here);
  ASSERT_EQ(step->draws.size(), 2u);
  const internal::Draw &there = step->draws[0], &local = step->draws[1];
  EXPECT_THAT((std::vector<uint64_t>{there.argument, there.resource, there.elements, there.tensors,
                                     there.first_input}),
              ElementsAre(1, 42, 2, 2, 1));
  EXPECT_THAT((std::vector<uint64_t>{local.argument, local.resource, local.elements, local.tensors,
                                     local.first_input}),
              ElementsAre(2, 0, 1, 1, 5));
  ASSERT_EQ(step->inputs.size(), 6u);
  EXPECT_TRUE(step->inputs[1].equal(at::zeros({2, 2}, at::kLong))) << "an example";
  EXPECT_EQ(step->inputs[5].item<int64_t>(), 7) << "drawn here";

  // Draws and runs as the worker does.
  std::vector<Tensor> inputs = step->inputs;
  Iterator resource = dataset.iterator();
  for (size_t i = 0; i < there.elements; ++i) {
    const auto element = internal::Access<Iterator>::source(resource)->draw().element;
    std::copy(element.begin(), element.end(),
              inputs.begin() + there.first_input + i * there.tensors);
  }
  const auto outputs =
      value_or_throw(internal::replay(*step->plan, inputs, /*variables=*/{}, at::Generator()));
  const Tensor result = internal::assemble<Tensor>(step->shape.get(), outputs);
  // Rows 0 and 1, 2 and 3: sums 1 + 9, 5 + 13; y 0 + 2, 1 + 3; and 7.
  EXPECT_EQ(result[0].item<int64_t>(), 19);
  EXPECT_EQ(result[1].item<int64_t>(), 29);

  // The same graph serves elements that are drawn here.
  Iterator batches = dataset.iterator();
  EXPECT_EQ(f(at::ones({}, at::kLong), batches, here)[0].item<int64_t>(), 20);
  EXPECT_EQ(f.captures(), 1);
}

TEST(IteratorPlaceholder, CannotBeDrawnFromHere) {
  Iterator there = internal::Access<Iterator>::placeholder(
      {internal::zeros(Dataset::range(3).element_spec())}, 42);
  EXPECT_THAT(error_of([&] { there.next(); }).what(), HasSubstr("iterator 42 on a worker"));
  EXPECT_THAT(error_of([&] { there.next_optional(); }).what(), HasSubstr("iterator 42"));
  auto f = function("f", [](Iterator& numbers) { return numbers.next() + 1; });
  EXPECT_THAT(error_of([&] { f(there); }).what(),
              AllOf(HasSubstr("function 'f'"), HasSubstr("iterator 42 on a worker")));
  using Steps = internal::Access<decltype(f)>;
  const auto first = Steps::prepare(f, there), second = Steps::prepare(f, there);
  EXPECT_EQ(f.captures(), 1);
  EXPECT_EQ(second->step, first->step + 1);
}

}  // namespace
}  // namespace trireme
