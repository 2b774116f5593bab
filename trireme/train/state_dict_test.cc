// A module's state dict is written and read as PyTorch does it, wherever the tensors live. The
// exchange with Python itself is in tests/integration/exchange_test.py.
#include "trireme/train/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/function/function.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/test_servers.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;

struct StateNet : torch::nn::Module {
  explicit StateNet(int outputs = 2) : last(4, outputs) {
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) { return last->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Linear last;
};

// One tensor under two names.
struct TiedStateNet : torch::nn::Module {
  TiedStateNet() {
    first = register_parameter("first", torch::ones({2}));
    second = register_parameter("second", first);
  }
  Tensor first, second;
};

class StateDictTest : public testing::Test {
 protected:
  std::string file(const std::string& name = "net.safetensors") const {
    return join_path(folder_.path(), name);
  }
  // Writes a file with tensors of ones.
  void write(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors) {
    std::vector<internal::TensorToSave> saved;
    for (const auto& [name, tensor] : tensors) {
      saved.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), tensor.const_data_ptr(),
                       tensor.nbytes()});
    }
    value_or_throw(internal::write_tensor_file(Files::local(), path, saved));
  }

  TemporaryFolder folder_;
};

void expect_equal_state(const StateNet& first, const StateNet& second) {
  const auto parameters = second.named_parameters();
  for (const auto& item : first.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), parameters[item.key()])) << item.key();
  }
  const auto buffers = second.named_buffers();
  for (const auto& item : first.named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), buffers[item.key()])) << item.key();
  }
}

TEST_F(StateDictTest, HasTheNamesOfPyTorch) {
  auto net = std::make_shared<StateNet>();
  net->forward(torch::randn({8, 4}));
  save_state_dict(net, file());
  const auto input = value_or_throw(Files::local().open(file()));
  const auto header = value_or_throw(internal::read_safetensors_header(*input, file()));
  std::vector<std::string> names;
  for (const auto& tensor : header.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("last.weight", "last.bias", "norm.weight",
                                                   "norm.bias", "norm.running_mean",
                                                   "norm.running_var", "norm.num_batches_tracked"));
  auto other = std::make_shared<StateNet>();
  EXPECT_THAT(load_state_dict(other, file()), IsEmpty());
  expect_equal_state(*net, *other);
  EXPECT_EQ(other->norm->num_batches_tracked.item<int64_t>(), 1);
  EXPECT_TRUE(other->last->weight.requires_grad());
}

TEST_F(StateDictTest, ReplacesAnOlderFile) {
  auto net = std::make_shared<StateNet>();
  save_state_dict(net, file());
  std::ofstream(file() + ".tmp") << "left by a crash";
  net->forward(torch::randn({8, 4}));
  save_state_dict(*net, file());
  auto other = std::make_shared<StateNet>();
  load_state_dict(*other, file());
  expect_equal_state(*net, *other);
  EXPECT_FALSE(std::filesystem::exists(file() + ".tmp"));
}

TEST_F(StateDictTest, MovesBetweenServersAndTheProgram) {
  TestServers cluster{2};
  ParameterServerStrategy strategy{Cluster(cluster.spec()), {.partitioner = FixedPartitioner(2)}};
  auto net = strategy.distribute<StateNet>();
  Sgd optimizer(net, {.lr = 0.1});
  const auto step = function("step", [&](const Tensor& x) {
    const Tensor loss = net->forward(x).pow(2).mean();
    optimizer.minimize(loss);
    return loss;
  });
  for (int i = 0; i < 3; ++i) step(torch::randn({8, 4}));
  save_state_dict(net, file());
  auto local = std::make_shared<StateNet>(), pulled = std::make_shared<StateNet>();
  load_state_dict(local, file());
  strategy.pull(net, pulled);
  expect_equal_state(*local, *pulled);

  auto fresh = std::make_shared<StateNet>();
  save_state_dict(fresh, file("fresh.safetensors"));
  load_state_dict(net, file("fresh.safetensors"));
  strategy.pull(net, pulled);
  expect_equal_state(*fresh, *pulled);
}

TEST_F(StateDictTest, ListsAllDifferences) {
  write(file(), {{"last.weight", torch::ones({3, 4})},
                 {"last.bias", torch::ones({2}, torch::kDouble)},
                 {"norm.weight", torch::ones({4})},
                 {"norm.running_mean", torch::ones({4})},
                 {"norm.running_var", torch::ones({4})},
                 {"norm.num_batches_tracked", torch::ones({}, torch::kLong)},
                 {"head.weight", torch::ones({1})}});
  auto net = std::make_shared<StateNet>();
  const torch::Tensor before = net->norm->running_mean.clone();
  const Error error = error_of([&] { load_state_dict(net, file()); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      error.what(),
      AllOf(HasSubstr("only in the module: 'norm.bias'"),
            HasSubstr("only in the file: 'head.weight'"),
            HasSubstr("'last.weight' is float32 [2, 4] in the module and float32 [3, 4] in the "
                      "file"),
            HasSubstr("'last.bias' is float32 [2] in the module and float64 [2] in the file")));
  EXPECT_TRUE(torch::equal(net->norm->running_mean, before));
  EXPECT_THAT(load_state_dict(net, file(), {.partial = true}),
              ElementsAre("last.weight", "last.bias", "norm.bias"));
  EXPECT_TRUE(torch::equal(net->norm->running_mean, torch::ones({4})));
}

TEST_F(StateDictTest, PatternsSelectNames) {
  auto net = std::make_shared<StateNet>(), other = std::make_shared<StateNet>(3);
  save_state_dict(net, file());
  const Tensor last = other->last->weight.clone();
  EXPECT_THAT(load_state_dict(other, file(), {.patterns = {"norm.*"}}),
              ElementsAre("last.weight", "last.bias"));
  EXPECT_TRUE(torch::equal(other->last->weight, last));
  EXPECT_THAT(error_text([&] { load_state_dict(other, file(), {.patterns = {"nrom.*"}}); }),
              HasSubstr("selected by the patterns 'nrom.*'"));
}

TEST_F(StateDictTest, OneNameIsEnoughForATiedTensor) {
  auto tied = std::make_shared<TiedStateNet>();
  write(file(), {{"first", torch::full({2}, 3.0)}});
  EXPECT_THAT(load_state_dict(tied, file()), IsEmpty());
  EXPECT_EQ(tied->second[1].item<float>(), 3);
  save_state_dict(tied, file("both.safetensors"));
  load_state_dict(tied, file("both.safetensors"));
}

TEST_F(StateDictTest, ReadsSeveralFilesWithAnIndex) {
  const auto index = [&](const std::string& second) {
    std::ofstream(file("model.safetensors.index.json"))
        << R"({"metadata": {"total_size": 40}, "weight_map": {"weight": "a.safetensors", "bias": ")"
        << second << "\"}}";
  };
  write(file("a.safetensors"), {{"weight", torch::full({2, 4}, 2.0)}});
  write(file("b.safetensors"), {{"bias", torch::full({2}, 5.0)}});
  index("b.safetensors");
  torch::nn::Linear net(4, 2);
  load_state_dict(net, folder_.path());
  EXPECT_EQ(net->weight[1][3].item<float>(), 2);
  EXPECT_EQ(net->bias[1].item<float>(), 5);
  load_state_dict(net, file("model.safetensors.index.json"));
  for (const char* wrong : {"a.safetensors", "../b.safetensors", "", "c.safetensors"}) {
    index(wrong);
    EXPECT_NE(error_of([&] { load_state_dict(net, folder_.path()); }).code(), ErrorCode::kOk)
        << wrong;
  }
}

TEST_F(StateDictTest, ErrorsNameTheFile) {
  torch::nn::Linear net(4, 2);
  EXPECT_EQ(error_of([&] { load_state_dict(net, file("nowhere")); }).code(), ErrorCode::kNotFound);
  EXPECT_THAT(error_text([&] { load_state_dict(net, folder_.path()); }),
              HasSubstr("neither a model.safetensors nor a model.safetensors.index.json"));
  save_state_dict(net, file());
  std::filesystem::resize_file(file(), std::filesystem::file_size(file()) - 1);
  const Error error = error_of([&] { load_state_dict(net, file()); });
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(error.what(), HasSubstr("net.safetensors"));
  EXPECT_THAT(error_text([&] { save_state_dict(net, file("missing/net.safetensors")); }),
              HasSubstr("missing/net.safetensors"));
}

TEST_F(StateDictTest, IsRejectedInAFunction) {
  torch::nn::Linear net(4, 2);
  save_state_dict(net, file());
  const auto loads = function("loads", [&](const Tensor& x) {
    load_state_dict(net, file());
    return x + 1;
  });
  EXPECT_THAT(error_text([&] { loads(torch::ones({1})); }),
              AllOf(HasSubstr("function 'loads'"), HasSubstr("outside of the function")));
}

}  // namespace
}  // namespace trireme
