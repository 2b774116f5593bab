// A malicious graph gets an error that names the bad argument. The tests corrupt each argument that
// LibTorch's kernels do not check; without the guards most of them crash the process.
#include "trireme/graph/guards.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/function/function.h"

namespace trireme::internal {
namespace {

using at::Tensor;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

struct GuardCase {
  std::string name;
  std::function<Tensors(const Tensors&)> body;
  Tensors good;
  // A bad value for one argument, and a part of the expected error.
  struct Bad {
    size_t argument;
    Tensor tensor;
    std::string message;
  };
  std::vector<Bad> bad;
};

void PrintTo(const GuardCase& guard_case, std::ostream* out) {
  *out << guard_case.name;
}

Tensor longs(std::vector<int64_t> values) {
  return torch::tensor(values, torch::kLong);
}

Tensors from(const std::tuple<Tensor, Tensor, Tensor>& tensors) {
  return {std::get<0>(tensors), std::get<1>(tensors), std::get<2>(tensors)};
}

std::shared_ptr<const Plan> plan_of(const Graph& graph) {
  return Access<Graph>::plan(graph);
}

class GuardedOperators : public testing::TestWithParam<GuardCase> {};

TEST_P(GuardedOperators, RejectBadArguments) {
  const GuardCase& guard_case = GetParam();
  const torch::NoGradGuard no_gradients;
  const auto plan = plan_of(
      function(guard_case.name, guard_case.body, {.check_capture = false}).graph(guard_case.good));
  const auto run = [&](const Tensors& inputs) {
    return replay(*plan, inputs, {}, make_step_generator(0, 0)).status();
  };
  EXPECT_EQ(describe(run(guard_case.good)), describe(absl::OkStatus()));
  for (const GuardCase::Bad& bad : guard_case.bad) {
    Tensors inputs = guard_case.good;
    inputs[bad.argument] = bad.tensor;
    const absl::Status status = run(inputs);
    EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument) << describe(status);
    EXPECT_THAT(describe(status), HasSubstr("operator 'aten::"));
    EXPECT_THAT(describe(status), HasSubstr(bad.message));
  }
}

constexpr int64_t kFar = int64_t{1} << 40;

std::vector<GuardCase> guard_cases() {
  const auto f = [](at::IntArrayRef sizes) { return torch::rand(sizes); };
  const auto far = [](at::IntArrayRef sizes) { return torch::full(sizes, kFar, torch::kLong); };
  std::vector<GuardCase> all;
  all.push_back({"max_pool2d",
                 [](const Tensors& t) {
                   return Tensors{at::max_pool2d_with_indices_backward(
                       t[0], t[1], {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, t[2])};
                 },
                 {f({2, 3, 4, 4}), f({2, 3, 8, 8}), torch::zeros({2, 3, 4, 4}, torch::kLong)},
                 {{2, far({2, 3, 4, 4}), "'indices' holds"},
                  {2, torch::full({2, 3, 4, 4}, -5, torch::kLong), "'indices' holds"},
                  {2, torch::full({2, 3, 4, 4}, 64, torch::kLong), "at least 0 and less than 64"},
                  {2, torch::zeros({3, 4, 4}, torch::kLong), "'indices' has the shape"}}});
  all.push_back(
      {"max_pool3d",
       [](const Tensors& t) {
         return Tensors{at::max_pool3d_with_indices_backward(t[0], t[1], {2, 2, 2}, {2, 2, 2},
                                                             {0, 0, 0}, {1, 1, 1}, false, t[2])};
       },
       {f({2, 3, 2, 2, 2}), f({2, 3, 4, 4, 4}), torch::zeros({2, 3, 2, 2, 2}, torch::kLong)},
       {{2, far({2, 3, 2, 2, 2}), "'indices' holds"},
        {1, f({1, 3, 4, 4, 4}), "batch and channels"}}});
  all.push_back(
      {"adaptive_max_pool2d",
       [](const Tensors& t) { return Tensors{at::adaptive_max_pool2d_backward(t[0], t[1], t[2])}; },
       {f({2, 3, 4, 4}), f({2, 3, 8, 8}), torch::zeros({2, 3, 4, 4}, torch::kLong)},
       {{2, far({2, 3, 4, 4}), "'indices' holds"}, {1, f({1, 1, 1, 1}), "batch and channels"}}});
  all.push_back({"avg_pool2d",
                 [](const Tensors& t) {
                   return Tensors{at::avg_pool2d_backward(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, false,
                                                          true, std::nullopt)};
                 },
                 {f({2, 3, 4, 4}), f({2, 3, 8, 8})},
                 {{1, f({1, 3, 8, 8}), "batch and channels"}}});
  all.push_back(
      {"adaptive_avg_pool2d",
       [](const Tensors& t) { return Tensors{at::_adaptive_avg_pool2d_backward(t[0], t[1])}; },
       {f({2, 3, 4, 4}), f({2, 3, 8, 8})},
       {{1, f({1, 1, 1, 1}), "batch and channels"}, {1, f({2, 3, 0, 8}), "must not be empty"}}});
  all.push_back({"nll_loss",
                 [](const Tensors& t) {
                   return Tensors{at::nll_loss_backward(t[0], t[1], t[2], {}, 0, -100, t[3])};
                 },
                 {f({4}), f({4, 10}), longs({0, 1, -100, 9}), f({})},
                 {{2, longs({0, 1, 2, 10}), "'target' holds"},
                  {2, longs({0, 1, 2, -kFar}), "'target' holds"},
                  {1, f({4, 1}), "'target' holds"},
                  {0, f({1}), "'grad_output' has 1 elements"}}});
  all.push_back({"nll_loss2d",
                 [](const Tensors& t) {
                   return Tensors{at::nll_loss2d_backward(t[0], t[1], t[2], {}, 0, -100, t[3])};
                 },
                 {f({2, 4, 4}), f({2, 5, 4, 4}), torch::zeros({2, 4, 4}, torch::kLong), f({})},
                 {{2, far({2, 4, 4}), "'target' holds"}}});
  all.push_back({"log_softmax",
                 [](const Tensors& t) {
                   return Tensors{at::_log_softmax_backward_data(t[0], t[1], 1, at::kFloat)};
                 },
                 {f({4, 5}), f({4, 5})},
                 {{1, f({1, 1}), "'output' has the shape"}}});
  all.push_back({"reflection_pad2d",
                 [](const Tensors& t) {
                   return Tensors{at::reflection_pad2d_backward(t[0], t[1], {1, 1, 2, 2})};
                 },
                 {f({2, 3, 12, 10}), f({2, 3, 8, 8})},
                 {{1, f({2, 6, 8, 8}), "batch and channels"},
                  {1, f({2, 3, 8, 9}), "as large as 'self' with its padding"}}});
  all.push_back({"grid_sampler_2d",
                 [](const Tensors& t) {
                   const auto [a, b] =
                       at::grid_sampler_2d_backward(t[0], t[1], t[2], 0, 0, false, {true, true});
                   return Tensors{a, b};
                 },
                 {f({2, 3, 5, 5}), f({2, 3, 8, 8}), f({2, 5, 5, 2})},
                 {{0, f({2, 3, 1, 5}), "'grad_output' has the shape"},
                  {2, f({2, 10, 5, 2}), "'grad_output' has the shape"}}});
  all.push_back({"unfold",
                 [](const Tensors& t) {
                   return Tensors{at::unfold_backward(t[0], {3, 8}, 1, 2, 2)};
                 },
                 {f({3, 4, 2})},
                 {{0, f({1, 1, 1}), "'grad_in' has the shape"}}});
  all.push_back({"embedding",
                 [](const Tensors& t) {
                   return Tensors{at::embedding_dense_backward(t[0], t[1], 20, -1, true)};
                 },
                 {f({3, 4}), longs({0, 1, 19})},
                 {{1, longs({0, 1, 20}), "'indices' holds"},
                  {1, longs({0, 1, -kFar}), "'indices' holds"},
                  {0, f({2, 4}), "'grad_output' has 8 elements"}}});
  all.push_back(
      {"embedding_bag",
       [](const Tensors& t) { return Tensors{std::get<0>(at::_embedding_bag(t[0], t[1], t[2]))}; },
       {f({20, 4}), longs({1, 2, 3, 4}), longs({0, 2})},
       {{1, longs({1, 2, 3, 20}), "'indices' holds"},
        {2, longs({0, -kFar}), "'offsets' holds"},
        {2, longs({0, 5}), "'offsets' holds"},
        {2, longs({1, 2}), "begin with 0"}}});
  all.push_back({"embedding_bag_backward",
                 [](const Tensors& t) {
                   return Tensors{at::_embedding_bag_backward(t[0], t[1], t[2], t[3], t[4], t[5],
                                                              20, false, 2, false, {})};
                 },
                 {f({2, 4}), longs({1, 2, 3, 4}), longs({0, 2}), longs({0, 0, 1, 1}), longs({2, 2}),
                  torch::ones({2, 4}, torch::kLong)},
                 {{1, longs({1, 2, 3, 20}), "'indices' holds"},
                  {3, longs({0, 0, 1, 2}), "'offset2bag' holds"},
                  {3, longs({0, 0}), "'offset2bag' must have"},
                  {4, longs({2}), "'bag_size' has 1 elements"},
                  {5, far({2, 4}), "'maximum_indices' holds"}}});
  all.push_back({"layer_norm",
                 [](const Tensors& t) {
                   return from(at::native_layer_norm_backward(t[0], t[1], {8}, t[2], t[3], t[4],
                                                              t[5], {true, true, true}));
                 },
                 {f({6, 8}), f({6, 8}), f({6, 1}), f({6, 1}), f({8}), f({8})},
                 {{0, f({1, 8}), "'grad_out' has the shape"},
                  {2, f({1}), "'mean' has 1 elements"},
                  {3, f({0}), "'rstd' has 0 elements"},
                  {4, f({1}), "'weight or bias' has the shape"}}});
  all.push_back({"batch_norm",
                 [](const Tensors& t) {
                   return from(
                       at::native_batch_norm(t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-5));
                 },
                 {f({4, 3, 5, 5}), f({3}), f({3}), f({3}), f({3})},
                 {{0, f({3, 5, 5}), "has the shape"}, {3, f({0}), "has the shape"}}});
  all.push_back({"batch_norm_backward",
                 [](const Tensors& t) {
                   return from(at::native_batch_norm_backward(t[0], t[1], t[2], {}, {}, t[3], t[4],
                                                              true, 1e-5, {true, true, true}));
                 },
                 {f({4, 3, 5, 5}), f({4, 3, 5, 5}), f({3}), f({3}), f({3})},
                 {{0, f({1, 3, 5, 5}), "'grad_out' has the shape"}, {3, f({1}), "has the shape"}}});
  all.push_back({"convolution",
                 [](const Tensors& t) {
                   return from(at::convolution_backward(t[0], t[1], t[2], at::IntArrayRef({6}),
                                                        {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1,
                                                        {true, true, true}));
                 },
                 {f({2, 6, 8, 8}).to(at::kDouble), f({2, 3, 8, 8}).to(at::kDouble),
                  f({6, 3, 3, 3}).to(at::kDouble)},
                 {{0, f({1, 6, 8, 8}).to(at::kDouble), "'grad_output' has the shape"},
                  {1, f({3, 3, 8, 8}).to(at::kDouble), "'grad_output' has the shape"}}});
  all.push_back({"fused_sgd",
                 [](const Tensors& t) {
                   const Tensors self = {t[0].clone()};
                   at::_fused_sgd_(self, {t[1]}, {}, 0., 0., 0.1, 0., false, false, false);
                   return self;
                 },
                 {f({5, 3}), f({5, 3})},
                 {{1, f({1}), "differs from its parameter"},
                  {1, f({1, 1}).expand({5, 3}), "differs from its parameter"},
                  {1, f({5, 3}).to(at::kDouble), "differs from its parameter"}}});
  all.push_back({"fused_adam",
                 [](const Tensors& t) {
                   const Tensors self = {t[0].clone()};
                   at::_fused_adam_(self, {t[1]}, {t[2].clone()}, {t[3].clone()}, {}, {t[4]}, 0.1,
                                    0.9, 0.99, 0., 1e-8, false, false);
                   return self;
                 },
                 {f({5, 3}), f({5, 3}), f({5, 3}), f({5, 3}), f({})},
                 {{2, f({1}), "differs from its parameter"},
                  {3, f({5}), "differs from its parameter"},
                  {4, f({0}), "one float"}}});
  all.push_back({"attention",
                 [](const Tensors& t) {
                   return Tensors{std::get<0>(
                       at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2]))};
                 },
                 {f({2, 4, 6, 8}), f({2, 4, 6, 8}), f({2, 4, 6, 8})},
                 {{0, f({2, 4, 0, 8}), "'query' must have"},
                  {1, f({2, 2, 6, 8}), "'key' has the shape"},
                  {2, f({2, 4, 7, 8}), "'value' has the shape"}}});
  all.push_back({"attention_backward",
                 [](const Tensors& t) {
                   return from(at::_scaled_dot_product_flash_attention_for_cpu_backward(
                       t[0], t[1], t[1], t[1], t[0], t[2], 0., false));
                 },
                 {f({2, 4, 6, 8}), f({2, 4, 6, 8}), f({2, 4, 6})},
                 {{0, f({2, 4, 1, 8}), "'grad_out' has the shape"},
                  {2, f({1}), "'logsumexp' has the shape"}}});
  all.push_back({"group_norm",
                 [](const Tensors& t) {
                   return from(at::native_group_norm(t[0], t[1], t[2], 2, 4, 3, 2, 1e-5));
                 },
                 {f({2, 4, 3}), f({4}), f({4})},
                 {{0, f({2, 4, 2}), "N * C * HxW"}, {1, f({1}), "'weight or bias' has 1"}}});
  all.push_back({"group_norm_backward",
                 [](const Tensors& t) {
                   return from(at::native_group_norm_backward(t[0], t[1], t[2], t[3], t[4], 2, 4, 3,
                                                              2, {true, true, true}));
                 },
                 {f({2, 4, 3}), f({2, 4, 3}), f({2, 2}), f({2, 2}), f({4})},
                 {{0, f({2, 4, 1}), "'grad_out' has the shape"},
                  {2, f({2}), "'mean' has 2"},
                  {3, f({1}), "'rstd' has 1"}}});
  all.push_back({"multi_margin_loss",
                 [](const Tensors& t) {
                   return Tensors{at::multi_margin_loss_backward(t[0], t[1], t[2], 1, 1, t[3], 0)};
                 },
                 {f({5}), f({5, 3}), longs({0, 1, 2, 0, 1}), f({3})},
                 {{0, f({1}), "'grad_output' has 1"},
                  {2, longs({0, 1, 2, 0, 3}), "'target' holds"},
                  {2, longs({0}), "'target' has 1"},
                  {3, f({1}), "'weight' has 1"}}});
  const auto pivots = [](std::vector<int> items) { return torch::tensor(items, torch::kInt); };
  all.push_back({"lu_unpack",
                 [](const Tensors& t) { return from(at::lu_unpack(t[0], t[1])); },
                 {f({4, 4}), pivots({1, 2, 3, 4})},
                 {{1, pivots({1}), "'pivots' has the shape"},
                  {1, pivots({1, 2, 3, 5}), "'pivots' holds"},
                  {1, pivots({1, 2, 0, 4}), "'pivots' holds"}}});
  all.push_back({"lu_solve",
                 [](const Tensors& t) { return Tensors{at::linalg_lu_solve(t[0], t[1], t[2])}; },
                 {f({4, 4}), pivots({1, 2, 3, 4}), f({4, 2})},
                 {{1, pivots({1}), "'pivots' has the shape"},
                  {1, pivots({1, 2, 3, 1 << 30}), "'pivots' holds"}}});
  all.push_back({"fft",
                 [](const Tensors& t) { return Tensors{at::_fft_c2r(t[0], {1}, 0, 8)}; },
                 {torch::rand({3, 5}, torch::kComplexFloat)},
                 {{0, torch::rand({3, 2}, torch::kComplexFloat), "'last_dim_size' must fit"},
                  {0, torch::rand({3}, torch::kComplexFloat), "'dim' must name"}}});
  all.push_back({"sparse",
                 [](const Tensors& t) {
                   return Tensors{at::_sparse_coo_tensor_unsafe(t[0], t[1], {4}).to_dense()};
                 },
                 {longs({0, 1, 3}).unsqueeze(0), f({3})},
                 {{0, longs({0, 1, 4}).unsqueeze(0), "indices of a sparse argument"},
                  {0, longs({0, 1, -kFar}).unsqueeze(0), "indices of a sparse argument"}}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, GuardedOperators, testing::ValuesIn(guard_cases()),
                         [](const auto& info) { return info.param.name; });

// The indices of a sparse tensor can be written to after it was made.
TEST(Guards, SparseIndicesAreCheckedAtEachUse) {
  const auto body = [](const Tensors& t) {
    const Tensor sparse = at::_sparse_coo_tensor_unsafe(t[0].clone(), t[1], {4});
    sparse._indices().add_(t[2]);
    return Tensors{sparse.to_dense()};
  };
  const Tensors good = {longs({0, 1}).unsqueeze(0), torch::rand({2}), longs({1})};
  const torch::NoGradGuard no_gradients;
  const auto plan = plan_of(function("late", body, {.check_capture = false}).graph(good));
  EXPECT_TRUE(replay(*plan, good, {}, {}).ok());
  const auto failed = replay(*plan, {good[0], good[1], longs({kFar})}, {}, {});
  EXPECT_THAT(describe(failed.status()), HasSubstr("indices of a sparse argument"));
}

TEST(Guards, RejectsAnLstmWorkspaceOfTheWrongSize) {
  const auto forward = [](const Tensors& t) {
    return at::mkldnn_rnn_layer(t[0], t[1], t[2], t[3], t[4], t[5], t[5], false, {}, 2, 4, 1, true,
                                false, false, true);
  };
  const auto body = [forward](const Tensors& t) {
    const auto layer = forward(t);
    const auto gradients = at::mkldnn_rnn_layer_backward(
        t[0], t[1], t[2], t[3], t[4], t[5], t[5], std::get<0>(layer), std::get<1>(layer),
        std::get<2>(layer), std::get<0>(layer), {}, {}, false, 2, 4, 1, true, true, false, {},
        false, t[6].clone());
    return Tensors{std::get<0>(gradients)};
  };
  if (!at::globalContext().hasMKLDNN()) GTEST_SKIP() << "this LibTorch has no oneDNN";
  Tensors good = {torch::rand({5, 2, 3}), torch::rand({16, 3}), torch::rand({16, 4}),
                  torch::rand({16}),      torch::rand({16}),    torch::rand({2, 4})};
  good.push_back(torch::zeros_like(std::get<3>(forward(good))));
  const auto plan = plan_of(function("lstm", body, {.check_capture = false}).graph(good));
  EXPECT_EQ(describe(replay(*plan, good, {}, {}).status()), describe(absl::OkStatus()));
  Tensors inputs = good;
  inputs[6] = good[6].slice(0, 1);
  EXPECT_THAT(describe(replay(*plan, inputs, {}, {}).status()), HasSubstr("'workspace' has"));
  inputs = good;
  inputs[2] = torch::rand({16, 1});
  EXPECT_THAT(describe(replay(*plan, inputs, {}, {}).status()), HasSubstr("hidden weight"));
}

// The processor raises a signal when the quotient of two integers overflows.
TEST(Guards, RejectsQuotientsThatOverflow) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int32_t kLeastInt = std::numeric_limits<int32_t>::min();
  using Body = std::function<Tensors(const Tensors&)>;
  const std::vector<Body> bodies = {
      [](const Tensors& t) { return Tensors{at::div(t[0], t[1], "trunc")}; },
      [](const Tensors& t) { return Tensors{at::div(t[0], t[1], "floor")}; },
      [](const Tensors& t) { return Tensors{at::div(t[0], -1, "trunc") + t[1]}; },
      [](const Tensors& t) { return Tensors{at::floor_divide(t[0], t[1])}; },
      [](const Tensors& t) { return Tensors{at::remainder(t[0], t[1])}; },
      [](const Tensors& t) { return Tensors{at::remainder(t[0], -1) + t[1]}; },
      [](const Tensors& t) { return Tensors{at::fmod(t[0], t[1])}; },
      [](const Tensors& t) { return Tensors{t[0].clone().div_(t[1], "trunc")}; },
      [](const Tensors& t) { return Tensors{t[0].clone().remainder_(t[1])}; },
  };
  const auto row = [](int64_t a, int64_t b, c10::ScalarType dtype) {
    return torch::tensor({a, b}, torch::kLong).to(dtype);
  };
  for (const auto& [least, dtype] :
       {std::pair<int64_t, c10::ScalarType>{kLeast, at::kLong}, {kLeastInt, at::kInt}}) {
    for (const Body& body : bodies) {
      const Tensors good = {row(7, -6, dtype), row(2, -1, dtype)};
      const auto plan = plan_of(function("quotient", body, {.check_capture = false}).graph(good));
      EXPECT_TRUE(replay(*plan, good, {}, {}).ok());
      EXPECT_THAT(
          describe(replay(*plan, {row(6, least, dtype), row(2, -1, dtype)}, {}, {}).status()),
          HasSubstr("smallest number of its dtype by -1"));
    }
  }
  const auto plan =
      plan_of(function("multiple", [](const Tensors& t) { return Tensors{at::lcm(t[0], t[1])}; },
                       {.check_capture = false})
                  .graph(Tensors{row(6, 4, at::kLong), row(5, 5, at::kLong)}));
  EXPECT_THAT(
      describe(replay(*plan, {row(6, kLeast, at::kLong), row(5, 5, at::kLong)}, {}, {}).status()),
      HasSubstr("smallest number of its dtype"));
}

// oneDNN leaves bytes of its workspace unwritten, and a graph must not read uninitialized memory.
TEST(Guards, OnlyTheBackwardPassReadsAnLstmWorkspace) {
  if (!at::globalContext().hasMKLDNN()) GTEST_SKIP() << "this LibTorch has no oneDNN";
  const auto capture = [](bool as_output) {
    const auto body = [as_output](const Tensors& t) {
      const auto layer = at::mkldnn_rnn_layer(t[0], t[1], t[2], t[3], t[4], t[5], t[5], false, {},
                                              2, 4, 1, true, false, false, true);
      return Tensors{as_output ? std::get<3>(layer) : std::get<3>(layer) + 1};
    };
    function("lstm", body, {.check_capture = false})
        .graph(Tensors{torch::rand({5, 2, 3}), torch::rand({16, 3}), torch::rand({16, 4}),
                       torch::rand({16}), torch::rand({16}), torch::rand({2, 4})});
  };
  for (bool as_output : {true, false}) {
    EXPECT_THAT([&] { capture(as_output); },
                testing::ThrowsMessage<Error>(HasSubstr("workspace of an LSTM's forward pass")));
  }
}

TEST(Guards, EmptyTensorsAreZero) {
  const auto body = [](const Tensor& x) {
    const Tensor gaps = at::empty_strided({2}, {999});
    return Tensors{at::empty({1000}), at::empty_like(x), x.new_empty({1000}),
                   at::as_strided(gaps, {1000}, {1}), at::empty_permuted({10, 100}, {1, 0})};
  };
  const Tensor x = torch::ones({1000});
  const auto plan = plan_of(function("empty", body, {.check_capture = false}).graph(x));
  for (int i = 0; i < 20; ++i) {
    torch::full({1000}, 7.0f);  // fills memory that the allocator hands out again
    for (const Tensor& given : value_or_throw(replay(*plan, {x}, {}, {}))) {
      EXPECT_EQ(given.abs().sum().item<float>(), 0);
    }
  }
}

// The old block may be in flight to another task, and the new one may hold data of other tensors.
TEST(Guards, ATensorCannotGrow) {
  const auto body = [](const Tensor& x) {
    Tensor resized = x.clone();
    return resized.resize_({2, 2});
  };
  const auto plan =
      plan_of(function("resize", body, {.check_capture = false}).graph(torch::ones({4})));
  EXPECT_TRUE(replay(*plan, {torch::ones({5})}, {}, {}).ok());
  EXPECT_THAT(describe(replay(*plan, {torch::ones({3})}, {}, {}).status()),
              HasSubstr("cannot grow"));
}

// LibTorch checks these arguments itself.
TEST(Guards, ViewsStayInTheirStorage) {
  for (const auto& [sizes, strides, offset] :
       {std::tuple<std::vector<int64_t>, std::vector<int64_t>, int64_t>{{100}, {1}, 0},
        {{2}, {1000}, 0},
        {{1}, {1}, 1000},
        {{2}, {-1}, 0},
        {{1}, {1}, -1}}) {
    for (const char* op : {"aten::as_strided", "trireme::as_strided"}) {
      auto data = std::make_shared<GraphData>(
          *plan_of(function("view",
                            [](const Tensor& x) { return at::as_strided(x, {2}, {1}, 0) + 1; },
                            {.check_capture = false})
                       .graph(torch::rand({4})))
               ->graph);
      proto::Node& node = *data->def.mutable_nodes(0);
      node.set_op(op);
      node.mutable_arguments(1)->mutable_integers()->clear_items();
      node.mutable_arguments(2)->mutable_integers()->clear_items();
      for (int64_t size : sizes) node.mutable_arguments(1)->mutable_integers()->add_items(size);
      for (int64_t s : strides) node.mutable_arguments(2)->mutable_integers()->add_items(s);
      node.mutable_arguments(3)->set_integer(offset);
      const auto plan = compile(data);
      ASSERT_TRUE(plan.ok()) << describe(plan.status());
      EXPECT_FALSE(replay(**plan, {torch::rand({4})}, {}, {}).ok()) << op << " " << offset;
    }
  }
}

TEST(Guards, ReshapedViewsStayInTheirStorage) {
  using Numbers = std::vector<int64_t>;
  const auto check = [](Numbers sizes, Numbers strides) {
    const Tensor x = torch::rand({4, 5});
    find_guard("aten::_reshape_alias")(
        std::vector<c10::IValue>{x, c10::List<int64_t>(sizes), c10::List<int64_t>(strides)});
  };
  EXPECT_NO_THROW(check({5, 4}, {4, 1}));
  EXPECT_NO_THROW(check({20}, {1}));
  EXPECT_THROW(check({5, 4}, {4, 2}), Error);
  EXPECT_THROW(check({5, 4}, {5, 1}), Error);
  EXPECT_THROW(check({5, 4}, {-1, 1}), Error);
  EXPECT_THROW(check({5, 4}, {kFar, 1}), Error);
  EXPECT_THROW(check({21}, {0}), Error);
  EXPECT_THROW(check({20, kFar}, {0, 0}), Error);
  EXPECT_THROW(check({20}, {1, 1}), Error);
}

TEST(Guards, RejectsCompositeOperators) {
  auto data = std::make_shared<GraphData>(
      *plan_of(function("sum", [](const Tensor& x) { return x.relu(); }).graph(torch::rand({4})))
           ->graph);
  data->def.mutable_nodes(0)->set_op("aten::numpy_T");
  EXPECT_THAT(describe(compile(data).status()), HasSubstr("made of other operators"));
}

}  // namespace
}  // namespace trireme::internal
