#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <tuple>
#include <vector>

#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/libtorch_error.h"

namespace trireme {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

using StandInOperators = StandInAccelerator;
using Compute = std::function<Tensor(const std::vector<Tensor>&)>;

// Computes on the CPU and on the device. Returns how far the results, and the gradients of the
// inputs, are apart.
double distance_from_cpu(const std::vector<Tensor>& inputs, const Compute& compute) {
  std::vector<Tensor> results[2];
  for (int on_device : {0, 1}) {
    std::vector<Tensor> own;
    for (const Tensor& input : inputs) {
      own.push_back(on_device ? input.to(gpu(1)) : input.clone());
      own.back().requires_grad_(input.is_floating_point());
    }
    const Tensor result = compute(own);
    EXPECT_EQ(result.device(), on_device ? gpu(1) : c10::Device(c10::kCPU));
    results[on_device].push_back(result.detach());
    if (!result.requires_grad()) continue;
    (result * result).sum().backward();
    for (const Tensor& input : own) {
      if (input.grad().defined()) results[on_device].push_back(input.grad());
    }
  }
  EXPECT_EQ(results[0].size(), results[1].size());
  double largest = 0;
  for (size_t i = 0; i < results[0].size(); ++i) {
    largest = std::max(largest, largest_difference(results[0][i], results[1][i]));
  }
  return largest;
}

Tensor numbers(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

struct ComputeCase {
  const char* name;
  std::vector<Tensor> inputs;
  Compute compute;
};

void expect_as_on_cpu(const std::vector<ComputeCase>& cases) {
  for (const ComputeCase& each : cases) {
    SCOPED_TRACE(each.name);
    EXPECT_LE(distance_from_cpu(each.inputs, each.compute), 1e-12);
  }
}

TEST_F(StandInOperators, ComputeAsTheCpuDoes) {
  torch::manual_seed(1);
  const Tensor ids = torch::randint(0, 5, {7});
  expect_as_on_cpu({
      {"arithmetic",
       {numbers({3, 4}), numbers({4})},
       [](auto& x) { return (x[0] * 2 + x[1]) / (x[1].abs() + 1); }},
      {"promotion", {torch::arange(6), numbers({6})}, [](auto& x) { return x[0] * 0.5 + x[1]; }},
      {"in_place", {numbers({3, 4})}, [](auto& x) { return x[0].clone().mul_(2).add_(x[0]); }},
      {"views",
       {numbers({4, 6})},
       [](auto& x) {
         return x[0].t().slice(0, 1, 5).view({2, 2, 4}).select(1, 0).exp();
       }},
      {"write_to_view",
       {numbers({4, 6})},
       [](auto& x) {
         const Tensor copy = x[0].clone();
         copy.narrow(0, 1, 2).zero_();
         return copy;
       }},
      {"unfold", {numbers({9})}, [](auto& x) { return x[0].unfold(0, 3, 2).square(); }},
      {"cat",
       {numbers({2, 3}), numbers({4, 3})},
       [](auto& x) {
         return torch::cat({x[0], x[1]});
       }},
      {"sums",
       {numbers({5, 4})},
       [](auto& x) { return x[0].sum(0) + x[0].mean() + x[0].logsumexp(0); }},
      {"sort", {numbers({5, 4})}, [](auto& x) { return std::get<0>(x[0].sort(0)); }},
      {"index", {numbers({5, 4}), ids}, [](auto& x) { return x[0].index({x[1]}); }},
      {"host_index", {numbers({5, 4})}, [&](auto& x) { return x[0].index({ids}); }},
      {"masked", {numbers({5, 4})}, [](auto& x) { return x[0].masked_select(x[0] > 0); }},
      {"index_put",
       {numbers({5, 4}), ids},
       [](auto& x) { return x[0].clone().index_put_({x[1]}, x[0].sum()); }},
      {"matmul", {numbers({2, 3, 4}), numbers({4, 5})}, [](auto& x) { return x[0].matmul(x[1]); }},
      {"selection",
       {numbers({5, 4})},
       [](auto& x) {
         const Tensor clamped = torch::where(x[0] > 0, x[0].clamp(-1, 1), x[0].cumsum(0));
         return std::get<0>(torch::constant_pad_nd(clamped, {1, 2}).topk(3));
       }},
      {"empty", {numbers({0, 4})}, [](auto& x) { return x[0].sum(0) + x[0].exp().sum(); }},
      {"inverse", {numbers({4, 4})}, [](auto& x) { return torch::linalg_inv(x[0]); }},
      {"complex", {numbers({8})}, [](auto& x) { return torch::fft_rfft(x[0]).conj().abs(); }},
  });
}

TEST_F(StandInOperators, RunLayersAsTheCpuDoes) {
  torch::manual_seed(1);
  const Tensor ids = torch::randint(0, 5, {7});
  expect_as_on_cpu({
      {"conv2d",
       {numbers({2, 3, 8, 8}), numbers({4, 3, 3, 3}), numbers({4})},
       [](auto& x) { return torch::conv2d(x[0], x[1], x[2], 2, 1); }},
      {"max_pool2d", {numbers({2, 3, 8, 8})}, [](auto& x) { return torch::max_pool2d(x[0], 2); }},
      {"adaptive_pool",
       {numbers({2, 3, 8, 8})},
       [](auto& x) {
         return torch::adaptive_avg_pool2d(x[0], {2, 2});
       }},
      {"linear",
       {numbers({3, 4}), numbers({5, 4}), numbers({5})},
       [](auto& x) { return torch::linear(x[0], x[1], x[2]); }},
      {"layer_norm",
       {numbers({3, 4}), numbers({4}), numbers({4})},
       [](auto& x) { return torch::layer_norm(x[0], {4}, x[1], x[2]); }},
      {"group_norm", {numbers({3, 4, 2})}, [](auto& x) { return torch::group_norm(x[0], 2); }},
      {"batch_norm",
       {numbers({6, 4})},
       [](auto& x) { return torch::batch_norm(x[0], {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
      {"embedding", {numbers({5, 4}), ids}, [](auto& x) { return torch::embedding(x[0], x[1]); }},
      {"embedding_bag",
       {numbers({5, 4}), ids},
       [](auto& x) {
         const Tensor offsets = torch::arange(0, 7, 2, x[1].options());
         return std::get<0>(torch::embedding_bag(x[0], x[1], offsets));
       }},
      {"cross_entropy",
       {numbers({7, 5}), ids},
       [](auto& x) { return F::cross_entropy(x[0], x[1]); }},
      {"attention",
       {numbers({2, 3, 4, 8}), numbers({2, 3, 5, 8}), numbers({2, 3, 5, 8})},
       [](auto& x) { return torch::scaled_dot_product_attention(x[0], x[1], x[2]); }},
      {"lstm",
       {numbers({3, 2, 4}), numbers({12, 4}), numbers({12, 3}), numbers({1, 2, 3})},
       [](auto& x) {
         return std::get<0>(
             torch::lstm(x[0], {x[3], x[3]}, {x[1], x[2]}, false, 1, 0, true, false, false));
       }},
      {"gru",
       {numbers({3, 2, 4}), numbers({9, 4}), numbers({9, 3}), numbers({1, 2, 3})},
       [](auto& x) {
         return std::get<0>(torch::gru(x[0], x[3], {x[1], x[2]}, false, 1, 0, true, false, false));
       }},
  });
}

TEST_F(StandInOperators, ComputeInLists) {
  const std::vector<Tensor> tensors = {torch::ones({2}, gpu(0)), torch::ones({3}, gpu(0))};
  at::_foreach_mul_(tensors, 3);
  EXPECT_TRUE(tensors[1].cpu().equal(torch::full({3}, 3.0F)));
  const std::vector<Tensor> gradients = {torch::ones({2}, gpu(0)), torch::ones({3}, gpu(0))};
  at::_fused_sgd_(tensors, gradients, {}, 0, 0, /*lr=*/0.5, 0, false, false, true);
  EXPECT_TRUE(tensors[0].cpu().equal(torch::full({2}, 2.5F)));
  const std::vector<Tensor> parts = torch::unbind_copy(torch::arange(4, gpu(0)).view({2, 2}));
  EXPECT_TRUE(parts.at(1).cpu().equal(torch::tensor({2, 3})));
}

TEST_F(StandInOperators, ComputeInInferenceMode) {
  const c10::InferenceMode inference;
  Tensor sum = torch::ones({4}, c10::Device("gpu:1")).add_(1);
  sum =
      torch::layer_norm(sum, {4}) + sum.unsqueeze(0).index_select(0, sum.new_zeros({1}, at::kLong));
  EXPECT_TRUE(sum.cpu().equal(torch::full({1, 4}, 2.0F)));
}

TEST_F(StandInOperators, AcceptCallsOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([device = i % 2] {
      const Tensor weight = torch::ones({4, 4}, gpu(device)).requires_grad_();
      for (int step = 0; step < 50; ++step) weight.mm(weight).sum().backward();
      EXPECT_TRUE(weight.grad().cpu().equal(torch::full({4, 4}, 400.0F)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(StandInOperators, WriteToGivenTensors) {
  Tensor empty = torch::empty({0}, gpu(0));
  EXPECT_EQ(synchronizations_of([&] { torch::arange_out(empty, 5); }), 0);
  EXPECT_TRUE(empty.cpu().equal(torch::arange(5, torch::kFloat)));
  empty.resize_({2, 4}).narrow(0, 1, 1).fill_(1);
  EXPECT_EQ(empty.cpu().flatten()[3].item<float>(), 3);
}

TEST_F(StandInOperators, CopyBetweenHostAndDevices) {
  const Tensor host = torch::arange(6).view({2, 3});
  const Tensor first = host.to(gpu(0));
  set_stand_in_kernel_delay(std::chrono::milliseconds(5));
  Tensor second;
  EXPECT_EQ(synchronizations_of([&] { second = (first + 1).t().to(gpu(1), torch::kDouble); }), 0);
  EXPECT_TRUE(second.cpu().equal((host + 1).t().to(torch::kDouble)));
  EXPECT_EQ(synchronizations_of([&] { first.cpu(); }), 1);

  const Tensor pinned = host.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(host.is_pinned());
  Tensor back;
  EXPECT_EQ(synchronizations_of([&] {
              const Tensor there = pinned.to(gpu(0), /*non_blocking=*/true);
              back = (there + 1).to(torch::kCPU, /*non_blocking=*/true);
            }),
            0);
  EXPECT_TRUE(back.is_pinned());
  EXPECT_EQ(first.sum().item<int64_t>(), 15);  // Waits for the stream.
  EXPECT_TRUE(back.equal(host + 1));
}

TEST_F(StandInOperators, DrawFromTheGeneratorOfTheDevice) {
  const auto draw = [](int device) {
    const Tensor drawn = torch::randn({1000}, gpu(device)) + torch::randperm(1000, gpu(device));
    return torch::dropout(drawn, 0.5, true).cpu();
  };
  torch::manual_seed(7);
  const Tensor first = draw(0);
  const Tensor next = draw(0);
  const Tensor on_host = torch::randn({1});
  EXPECT_TRUE(draw(1).equal(first));
  torch::manual_seed(7);
  EXPECT_TRUE(draw(0).equal(first));
  EXPECT_TRUE(draw(0).equal(next));
  EXPECT_FALSE(first.equal(next));
  // The devices have not touched the generator of the host.
  EXPECT_TRUE(torch::randn({1}).equal(on_host));

  at::Generator generator = at::globalContext().defaultGenerator(gpu(0));
  const Tensor state = generator.get_state();
  const Tensor drawn = draw(0);
  generator.set_state(state);
  EXPECT_TRUE(draw(0).equal(drawn));
  EXPECT_NE(libtorch_error(
                [] { torch::ones({2}, gpu(0)).normal_(0, 1, at::detail::createCPUGenerator()); }),
            "no error");
}

}  // namespace
}  // namespace trireme
