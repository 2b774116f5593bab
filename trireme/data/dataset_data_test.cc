#include "trireme/data/dataset_data.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "trireme/base/status.h"
#include "trireme/tensor/codec.h"

namespace trireme {
namespace {

using at::Tensor;
using internal::data_of;
using internal::dataset_from;
using internal::DatasetData;
using testing::AllOf;
using testing::HasSubstr;

// Returns the data of a dataset as another machine receives it.
DatasetData sent(const Dataset& dataset) {
  const DatasetData data = data_of(dataset);
  DatasetData received;
  EXPECT_TRUE(received.def.ParseFromString(data.def.SerializeAsString()));
  received.tensors = value_or_throw(decode_tensors(value_or_throw(encode_tensors(data.tensors))));
  return received;
}

void expect_same(const Dataset& a, const Dataset& b) {
  EXPECT_EQ(a.describe(), b.describe());
  EXPECT_EQ(a.element_specs(), b.element_specs());
  EXPECT_EQ(a.size(), b.size());
  Iterator x = a.iterator(), y = b.iterator();
  for (int i = 0; i < 100; ++i) {
    const auto left = x.next_optional(), right = y.next_optional();
    ASSERT_EQ(left.has_value(), right.has_value());
    if (!left) return;
    for (size_t j = 0; j < left->size(); ++j) EXPECT_TRUE((*left)[j].equal((*right)[j]));
  }
}

TEST(DatasetData, TravelsWithItsTensorsAndFunctions) {
  const Tensor offset = at::tensor({1.5f, 2.5f}), scale = at::tensor({2.0f, 4.0f}).view({2, 1});
  const Dataset dataset = Dataset::from_tensors({at::arange(26.0).view({13, 2}), at::arange(13)})
                              .shuffle(5, {.seed = 3})
                              .batch(4)
                              .map([&](const Tensor& x, const Tensor& y) {
                                return std::make_pair((x + offset).matmul(scale), y);
                              })
                              .repeat(2)
                              .skip(1)
                              .take(6);
  expect_same(dataset, value_or_throw(dataset_from(sent(dataset))));
  expect_same(Dataset::range(9, -3, -4),
              value_or_throw(dataset_from(sent(Dataset::range(9, -3, -4)))));
}

// Returns the error for a dataset that was changed on its way to the receiver.
std::string refused(const Dataset& dataset, const std::function<void(DatasetData&)>& change) {
  DatasetData data = sent(dataset);
  change(data);
  const auto result = dataset_from(std::move(data));
  return result.ok() ? "accepted" : describe(result.status());
}

TEST(DatasetData, RejectsMalformedDatasets) {
  const Dataset range = Dataset::range(10), rows = Dataset::from_tensors({at::ones({3, 2})});
  EXPECT_THAT(refused(range, [](auto& data) { data.def.clear_steps(); }), HasSubstr("no step"));
  EXPECT_THAT(refused(range, [](auto& data) { data.def.set_format(2); }), HasSubstr("format 2"));
  EXPECT_THAT(refused(range, [](auto& data) { data.def.mutable_steps(0)->clear_range(); }),
              AllOf(HasSubstr("dataset step 0 'unknown'"), HasSubstr("no source")));
  EXPECT_THAT(refused(range, [](auto& data) { data.def.add_steps(); }),
              AllOf(HasSubstr("dataset step 1 'unknown'"), HasSubstr("does not know")));
  EXPECT_THAT(refused(range, [](auto& data) { *data.def.add_steps() = data.def.steps(0); }),
              AllOf(HasSubstr("dataset step 1 'range'"), HasSubstr("at the beginning")));
  EXPECT_THAT(refused(range, [](auto& data) { data.tensors.push_back(at::ones({3})); }),
              HasSubstr("1 more tensors"));
  EXPECT_THAT(refused(rows, [](auto& data) { data.tensors.clear(); }),
              HasSubstr("uses 1 tensors, but has 0"));
  EXPECT_THAT(
      refused(rows,
              [](auto& data) { data.def.mutable_steps(0)->mutable_tensors()->set_count(-1); }),
      HasSubstr("uses 4294967295 tensors, but has 1"));
  EXPECT_THAT(refused(rows, [](auto& data) { data.tensors[0] = at::ones({}); }),
              HasSubstr("axis 0"));
}

TEST(DatasetData, RejectsTooManySteps) {
  EXPECT_THAT(refused(Dataset::range(10),
                      [](auto& data) {
                        for (int i = 0; i < 100000; ++i) {
                          data.def.add_steps()->mutable_repeat()->set_count(1);
                        }
                      }),
              AllOf(HasSubstr("dataset step 100 'repeat'"), HasSubstr("at most 100 steps")));
}

TEST(DatasetData, RejectsSizesThatExceedTheMemory) {
  const int64_t huge = int64_t{1} << 60;
  const Dataset endless = Dataset::range(10).repeat();
  const auto with = [](const std::function<void(proto::DatasetStep&)>& set) {
    return [set](DatasetData& data) { set(*data.def.add_steps()); };
  };
  const auto batch = with([&](auto& step) { step.mutable_batch()->set_size(huge); });
  const auto shuffle = with([&](auto& step) { step.mutable_shuffle()->set_buffer(huge); });
  EXPECT_THAT(refused(endless, batch), AllOf(HasSubstr("step 2 'batch'"), HasSubstr("at most")));
  EXPECT_THAT(refused(endless, shuffle),
              AllOf(HasSubstr("step 2 'shuffle'"), HasSubstr("at most")));
  EXPECT_EQ(refused(Dataset::range(10), shuffle), "accepted")
      << "it never holds more than ten elements";
  EXPECT_THAT(refused(endless, with([](auto& step) { step.mutable_batch()->set_size(0); })),
              HasSubstr("its size is 0"));
  EXPECT_THAT(refused(endless, with([](auto& step) { step.mutable_shuffle()->set_buffer(-1); })),
              HasSubstr("its buffer is -1"));
  EXPECT_THAT(refused(endless, with([](auto& step) { step.mutable_take()->set_count(-1); })),
              HasSubstr("its count is -1"));
}

TEST(DatasetData, RejectsStepsThatReadTooManyElements) {
  const Dataset endless = Dataset::range(10).repeat();
  const auto skip = [](int64_t count) {
    return [count](DatasetData& data) { data.def.add_steps()->mutable_skip()->set_count(count); };
  };
  EXPECT_THAT(refused(endless, skip(int64_t{1} << 40)),
              AllOf(HasSubstr("dataset step 2 'skip'"), HasSubstr("elements of the source")));
  EXPECT_EQ(refused(endless, skip(1 << 20)), "accepted");
  // Each skip is allowed by itself, but the second one repeats the first for every element.
  const Dataset slow = Dataset::range(1 << 20).skip((1 << 20) - 1).repeat();
  EXPECT_THAT(refused(slow, skip(1 << 20)), HasSubstr("dataset step 3 'skip'"));
}

TEST(DatasetData, RejectsGraphsThatDoNotFitTheElements) {
  const Dataset mapped = Dataset::range(5).batch(2).map([](const Tensor& x) { return x + 1; });
  const auto change = [&](const std::function<void(proto::GraphDef&)>& change_graph) {
    return refused(mapped, [&](DatasetData& data) {
      change_graph(*data.def.mutable_steps(2)->mutable_map()->mutable_graphs(0));
    });
  };
  EXPECT_THAT(change([](auto& graph) { graph.mutable_nodes(0)->set_op("aten::from_file"); }),
              HasSubstr("dataset step 2 'map'"));
  EXPECT_THAT(change([](auto& graph) { graph.set_inputs(2); }), HasSubstr("dataset step 2 'map'"));
  EXPECT_THAT(change([](auto& graph) { graph.set_outputs(0, 77); }),
              HasSubstr("dataset step 2 'map'"));
  EXPECT_THAT(change([](auto& graph) { graph.set_outputs(0, -1); }), HasSubstr("undefined"));
  EXPECT_THAT(change([](auto& graph) { graph.clear_outputs(); }), HasSubstr("returns no tensor"));
  const auto change_result = [&](const std::function<void(proto::TensorType&)>& change_type) {
    return change([&](proto::GraphDef& graph) {
      change_type(*graph.mutable_values(static_cast<int>(graph.outputs(0)))->mutable_type());
    });
  };
  EXPECT_THAT(change_result([](auto& type) { type.set_dtype(12345); }),
              HasSubstr("dataset step 2 'map'"));
  EXPECT_THAT(change_result([](auto& type) { type.set_sizes(0, -3); }),
              HasSubstr("dataset step 2 'map'"));
  EXPECT_THAT(change_result([](auto& type) { type.set_sizes(0, int64_t{1} << 60); }),
              HasSubstr("dataset step 2 'map'"));
  EXPECT_THAT(refused(mapped,
                      [](DatasetData& data) {
                        data.def.mutable_steps(2)->mutable_map()->mutable_graphs()->RemoveLast();
                      }),
              HasSubstr("1 graphs for elements of 2 shapes"));
}

TEST(DatasetData, DetectsGraphsWhoseResultsDifferFromTheirTypes) {
  DatasetData data = sent(Dataset::range(4).map([](const Tensor& x) { return x + 1; }));
  auto& graph = *data.def.mutable_steps(1)->mutable_map()->mutable_graphs(0);
  auto& type = *graph.mutable_values(static_cast<int>(graph.outputs(0)))->mutable_type();
  type.add_sizes(7);
  type.add_strides(1);
  Iterator iterator = value_or_throw(dataset_from(std::move(data))).iterator();
  try {
    iterator.next();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("dataset step 1 'map'"), HasSubstr("its graph declares")));
  }
}

}  // namespace
}  // namespace trireme
