// A graph cannot make LibTorch kernels that ignore strides access memory outside of a tensor. Each
// test tensor is one element at the end of a page, expanded, so a kernel that reads or writes
// further crashes the process.
#include "trireme/graph/call_rules.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <torch/torch.h>

#include <cstring>

#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/function/function.h"

namespace trireme::internal {
namespace {

using at::Tensor;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

// Returns the first element of `tensor`, placed before an unmapped page, expanded to its shape.
Tensor expanded(const Tensor& tensor) {
  constexpr size_t kPage = 4096;
  char* pages = static_cast<char*>(
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(pages + kPage, kPage, PROT_NONE);
  char* element = pages + kPage - tensor.element_size();
  std::memcpy(element, tensor.const_data_ptr(), tensor.element_size());
  return at::from_blob(
             element, {}, [pages](void*) { munmap(pages, 2 * kPage); }, tensor.options())
      .expand(tensor.sizes());
}

template <typename... T>
Tensors from(const std::tuple<T...>& tensors) {
  return std::apply([](const auto&... tensor) { return Tensors{tensor...}; }, tensors);
}

std::shared_ptr<const Plan> plan_of(const std::function<Tensors(const Tensors&)>& body,
                                    const Tensors& arguments) {
  return Access<Graph>::plan(function("hostile", body, {.check_capture = false}).graph(arguments));
}

struct Reading {
  std::string name;
  std::function<Tensors(const Tensors&)> body;
  Tensors good;
  std::vector<size_t> arguments;  // indices of the arguments to expand, one at a time
};

void PrintTo(const Reading& reading, std::ostream* out) {
  *out << reading.name;
}

class Readings : public testing::TestWithParam<Reading> {};

TEST_P(Readings, ReadTheElementAndNothingAfterIt) {
  const Reading& reading = GetParam();
  const torch::NoGradGuard no_gradients;
  const auto plan = plan_of(reading.body, reading.good);
  const auto run = [&](const Tensors& inputs) {
    return value_or_throw(replay(*plan, inputs, {}, make_step_generator(0, 0)));
  };
  for (size_t i : reading.arguments) {
    SCOPED_TRACE(testing::Message() << "argument " << i);
    Tensors inputs = reading.good;
    inputs[i] = expanded(reading.good[i]);
    const Tensors given = run(inputs);
    inputs[i] = inputs[i].clone(at::MemoryFormat::Contiguous);
    const Tensors expected = run(inputs);
    for (size_t k = 0; k < given.size(); ++k) {
      EXPECT_TRUE(at::allclose(given[k], expected[k], 0, 0, /*equal_nan=*/true)) << "result " << k;
      EXPECT_EQ(given[k].strides(), expected[k].strides()) << "result " << k;
    }
  }
}

std::vector<Reading> readings() {
  std::vector<Reading> all;
  const auto f = [](at::IntArrayRef sizes) { return torch::rand(sizes); };
  const auto longs = [](std::vector<int64_t> items) { return torch::tensor(items, torch::kLong); };
  constexpr std::array<bool, 3> kAll = {true, true, true};
  all.push_back({"group_norm",
                 [](const Tensors& t) {
                   return from(at::native_group_norm(t[0], t[1], t[2], 2, 4, 3, 2, 1e-5));
                 },
                 {f({2, 4, 3}), f({4}), f({4})},
                 {1, 2}});
  all.push_back({"group_norm_backward",
                 [kAll](const Tensors& t) {
                   return from(at::native_group_norm_backward(t[0], t[1], t[2], t[3], t[4], 2, 4, 3,
                                                              2, kAll));
                 },
                 {f({2, 4, 3}), f({2, 4, 3}), f({2, 2}), f({2, 2}), f({4})},
                 {0, 1, 2, 3, 4}});
  all.push_back(
      {"layer_norm_backward",
       [kAll](const Tensors& t) {
         return from(at::native_layer_norm_backward(t[0], t[1], {4}, t[2], t[3], t[4], t[5], kAll));
       },
       {f({5, 4}), f({5, 4}), f({5, 1}), f({5, 1}), f({4}), f({4})},
       {0, 1, 2, 3, 4, 5}});
  const auto channels_last = [&f](at::IntArrayRef sizes) {
    return f(sizes).contiguous(at::MemoryFormat::ChannelsLast);
  };
  for (bool train : {true, false}) {
    all.push_back(
        {train ? "batch_norm_backward" : "batch_norm_backward_in_evaluation",
         [kAll, train](const Tensors& t) {
           return from(at::native_batch_norm_backward(t[0], t[1], t[2], t[3], t[4], t[3], t[4],
                                                      train, 1e-5, kAll));
         },
         {channels_last({4, 3, 5, 5}), channels_last({4, 3, 5, 5}), f({3}), f({3}), f({3})},
         {2, 3, 4}});
  }
  all.push_back({"embedding_bag",
                 [](const Tensors& t) {
                   return Tensors{
                       std::get<0>(at::_embedding_bag(t[0], t[1], t[2], false, 0, false, t[3]))};
                 },
                 {f({6, 4}), longs({0, 1, 2, 3}), longs({0, 2}), f({4})},
                 {0, 1, 3}});
  all.push_back({"embedding_bag_forward_only",
                 [](const Tensors& t) {
                   return Tensors{std::get<0>(at::_embedding_bag_forward_only(t[0], t[1], t[2]))};
                 },
                 {f({6, 4}), longs({0, 1, 2, 3}), longs({0, 2})},
                 {0, 1}});
  all.push_back({"embedding_bag_backward",
                 [](const Tensors& t) {
                   return Tensors{at::_embedding_bag_backward(t[0], t[1], t[2], t[3], t[4], t[5], 6,
                                                              false, 0, false, t[6])};
                 },
                 {f({2, 4}), longs({0, 1, 2, 3}), longs({0, 2}), longs({0, 0, 1, 1}), longs({2, 2}),
                  longs({}), f({4})},
                 {0, 1, 3, 4, 6}});
  all.push_back({"attention",
                 [](const Tensors& t) {
                   return from(at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2], 0.,
                                                                               false, t[3]));
                 },
                 {f({2, 4, 6, 8}), f({2, 4, 6, 8}), f({2, 4, 6, 8}), f({2, 4, 6, 6})},
                 {0, 1, 2, 3}});
  all.push_back({"attention_backward",
                 [](const Tensors& t) {
                   return from(at::_scaled_dot_product_flash_attention_for_cpu_backward(
                       t[0], t[1], t[2], t[3], t[4], t[5], 0., false));
                 },
                 {f({2, 4, 6, 8}), f({2, 4, 6, 8}), f({2, 4, 6, 8}), f({2, 4, 6, 8}),
                  f({2, 4, 6, 8}), f({2, 4, 6})},
                 {0, 1, 2, 3, 4, 5}});
  if (at::globalContext().hasMKLDNN()) {
    all.push_back(
        {"lstm",
         [](const Tensors& t) {
           const auto layer = at::mkldnn_rnn_layer(t[0], t[1], t[2], t[3], t[4], t[5], t[6], false,
                                                   {}, 2, 4, 1, true, false, false, true);
           return Tensors{std::get<0>(layer), std::get<1>(layer), std::get<2>(layer)};
         },
         {f({5, 2, 3}), f({16, 3}), f({16, 4}), f({16}), f({16}), f({1, 2, 4}), f({1, 2, 4})},
         {0, 1, 2, 3, 4, 5, 6}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Readings, testing::ValuesIn(readings()),
                         [](const auto& info) { return info.param.name; });

TEST(CallRules, RejectsAWriteToMemoryThatOverlapsItself) {
  const torch::NoGradGuard no_gradients;
  const auto body = [](const Tensors& t) {
    Tensor noise = at::as_strided(t[1] * 1, {5}, {2});
    return Tensors{at::rrelu_with_noise(t[0], noise, 0.1, 0.3, true)};
  };
  const Tensors good = {-torch::ones({5}), torch::zeros({9})};
  const auto captured = plan_of(body, good);
  EXPECT_TRUE(replay(*captured, good, {}, make_step_generator(0, 0)).ok());
  // Five elements share the memory of one.
  auto data = std::make_shared<GraphData>(*captured->graph);
  for (proto::Node& node : *data->def.mutable_nodes()) {
    if (node.op() == "aten::as_strided") {
      node.mutable_arguments(2)->mutable_integers()->set_items(0, 0);
    }
  }
  const auto edited = value_or_throw(compile(data));
  EXPECT_THAT(describe(replay(*edited, good, {}, make_step_generator(0, 0)).status()),
              HasSubstr("several elements share the same memory"));
  // Windows of two elements overlap by one.
  EXPECT_THAT(
      [&] {
        plan_of(
            [](const Tensors& t) {
              Tensor windows = (t[1] * 1).unfold(0, 2, 1);
              return Tensors{at::rrelu_with_noise(t[0], windows, 0.1, 0.3, true)};
            },
            {-torch::ones({4, 2}), torch::zeros({5})});
      },
      testing::ThrowsMessage<Error>(HasSubstr("several elements share the same memory")));
}

// Writes to slices and transposed tensors are still allowed.
TEST(CallRules, AllowsAWriteToAViewWithoutOverlap) {
  const auto plan = plan_of(
      [](const Tensors& t) {
        Tensor whole = torch::zeros({6, 8});
        whole.slice(1, 1, 8, 3).t().add_(t[0]);
        whole.select(0, 2).mul_(2);
        return Tensors{whole};
      },
      {torch::ones({3, 6})});
  EXPECT_EQ(value_or_throw(replay(*plan, {torch::ones({3, 6})}, {}, {}))[0].sum().item<float>(),
            21);
}

}  // namespace
}  // namespace trireme::internal
