// Operators and variables are placed on the devices that scopes name, and a graph that is cut into
// parts for several tasks gives the same bits as the whole graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <map>

#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/exec/part_run.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/graph/graph.h"
#include "trireme/placement/cutter.h"
#include "trireme/placement/placer.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::GraphPart;
using internal::PlacedGraph;
using testing::HasSubstr;
using torch::Tensor;

const TaskId kMaster = {"worker", 0};

// Returns the tensor of a variable as it is, also where read() is an error because of its device.
const Tensor& contents(const Variable& variable) {
  return internal::Access<Variable>::record(variable)->tensor;
}

internal::PlacementOptions cluster(bool soft = true) {
  return {.master = kMaster,
          .tasks = {{{"worker", 0}, DeviceList{.cpus = 2}},
                    {{"worker", 1}, DeviceList{.cpus = 2}},
                    {{"ps", 0}, DeviceList()},
                    {{"ps", 1}, DeviceList()}},
          .soft = soft};
}

absl::StatusOr<PlacedGraph> place(const Graph& graph, bool soft = true) {
  return internal::place(*internal::Access<Graph>::plan(graph), cluster(soft));
}

// Returns the device of the first operator of this name.
std::string device_of(const PlacedGraph& placed, const std::string& op) {
  for (const auto& node : placed.graph->def.nodes()) {
    if (node.op().starts_with("aten::" + op)) return node.device();
  }
  return "none";
}

TEST(DeviceScope, NestedScopesMergeFieldByField) {
  const auto f = function("f", [](const Tensor& x) {
    DeviceScope job("/job:worker");
    Tensor a = x.add(1);
    DeviceScope device("/cpu:1");
    a = a.mul(2);
    DeviceScope task("/task:1");
    return a.sub(3);
  });
  const PlacedGraph placed = value_or_throw(place(f.graph(torch::ones({2}))));
  EXPECT_EQ(device_of(placed, "add"), "/job:worker/task:0/cpu:0");
  EXPECT_EQ(device_of(placed, "mul"), "/job:worker/task:0/cpu:1");
  EXPECT_EQ(device_of(placed, "sub"), "/job:worker/task:1/cpu:1");
}

TEST(DeviceScope, OperatorsOutsideOfScopesRunOnTheMaster) {
  const auto f = function("f", [](const Tensor& x) { return x.add(1); });
  const PlacedGraph placed = value_or_throw(place(f.graph(torch::ones({2}))));
  EXPECT_EQ(device_of(placed, "add"), "/job:worker/task:0/cpu:0");
  EXPECT_THAT(
      internal::Access<Graph>::make(value_or_throw(internal::compile(placed.graph))).explain(),
      HasSubstr("/job:worker/task:0/cpu:0: no scope names a device"));
}

TEST(DeviceScope, SetterSpreadsVariablesAndPlacesTheRest) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 2}));
  std::vector<Variable> v;
  for (int i = 1; i <= 5; ++i) v.emplace_back("v" + std::to_string(i), torch::tensor(1.0));
  std::vector<std::string> devices;
  for (const Variable& variable : v) devices.push_back(variable.device());
  EXPECT_THAT(devices, testing::ElementsAre("/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0",
                                            "/job:ps/task:1", "/job:ps/task:0"));
  const auto f = function("f", [v] {
    Tensor s = v[0].read() + v[1].read();
    DeviceScope gpu("/gpu:1");
    s = s * 2;
    DeviceScope task("/task:1");
    return s - 1;
  });
  const Graph graph = f.graph();
  EXPECT_THAT(graph.explain(), HasSubstr("/job:worker/gpu:1: replica_device_setter > '/gpu:1'"));
  const PlacedGraph placed = value_or_throw(place(graph));
  EXPECT_EQ(device_of(placed, "add"), "/job:worker/task:0/cpu:0");
  EXPECT_EQ(device_of(placed, "mul"), "/job:worker/task:0/cpu:0");  // there is no gpu
  EXPECT_EQ(device_of(placed, "sub"), "/job:worker/task:1/cpu:0");
  EXPECT_THAT(placed.variable_tasks, testing::ElementsAre(TaskId{"ps", 0}, TaskId{"ps", 1}));
}

TEST(DeviceScope, SetterWithoutServersDoesNothing) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 0}));
  EXPECT_EQ(Variable("alone", torch::ones({})).device(), "");
}

TEST(DeviceScope, SetterCanBalanceBytes) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 2, .balance_bytes = true}));
  EXPECT_EQ(Variable("big", torch::ones({100})).device(), "/job:ps/task:0");
  EXPECT_EQ(Variable("small", torch::ones({1})).device(), "/job:ps/task:1");
  EXPECT_EQ(Variable("small too", torch::ones({1})).device(), "/job:ps/task:1");
}

TEST(DeviceScope, OutsideOfFunctionsOnlyLocalDevicesCompute) {
  const Tensor x = torch::ones({2});
  DeviceScope remote("/job:ps/task:0");
  EXPECT_EQ(error_text([&] { x + 1; }),
            "operator 'aten::add.Scalar' in the scope of device '/job:ps/task:0' would run in this "
            "program: outside of a captured function only local devices can be named. Put it into "
            "a function and run that with tr::Session, or compute it before the scope");
  // A variable and its initial value may be made in such a scope.
  const Variable v("v", torch::full({3}, 7));
  EXPECT_EQ(v.device(), "/job:ps/task:0");
  EXPECT_EQ(error_text([&] { v.read(); }),
            "variable 'v': it lives on '/job:ps/task:0', not in this program; read and write it in "
            "a function that a tr::Session runs");
  const auto f = function("f", [&] { return v.read() + 1; });
  EXPECT_THAT(
      error_text([&] { f(); }),
      HasSubstr("it has variable 'v' on '/job:ps/task:0', which this program cannot reach"));
}

TEST(DeviceScope, LocalDevicesMayBeNamedAnywhere) {
  DeviceScope local("/cpu:0");
  EXPECT_EQ((torch::ones({}) + 1).item<float>(), 2);
}

TEST(Placer, SoftPlacementTakesTheNearestDeviceAndReportsItOnce) {
  const auto f = function("f", [](const Tensor& x) {
    DeviceScope gpu("/job:worker/task:1/gpu:3");
    return (x + 1) * 2;
  });
  const Graph graph = f.graph(torch::ones({2}));
  const PlacedGraph placed = value_or_throw(place(graph));
  EXPECT_EQ(device_of(placed, "add"), "/job:worker/task:1/cpu:0");
  EXPECT_THAT(placed.missing_devices, testing::SizeIs(1));
  EXPECT_THAT(describe(place(graph, /*soft=*/false).status()),
              testing::AllOf(HasSubstr("device '/job:worker/task:1/gpu:3', named by scope "
                                       "'/job:worker/task:1/gpu:3', does not exist"),
                             HasSubstr("/job:worker/task:1/cpu:0, /job:worker/task:1/cpu:1")));
}

TEST(Placer, NeverChangesJobOrTask) {
  const auto f = function("f", [](const Tensor& x) {
    DeviceScope nowhere("/job:worker/task:7");
    return x + 1;
  });
  EXPECT_THAT(describe(place(f.graph(torch::ones({2}))).status()),
              testing::AllOf(HasSubstr("which is not a task of this cluster"),
                             HasSubstr("/job:ps/task:0, /job:ps/task:1, /job:worker/task:0")));
}

TEST(Placer, BackwardFollowsForwardAndUpdatesFollowTheirVariable) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 2}));
  const Variable w("w", torch::ones({2, 2}));
  const auto f = function("f", [w](const Tensor& x) {
    Tensor y;
    {
      DeviceScope second("/job:worker/task:1");
      y = torch::tanh(x.mm(w.read()));
    }
    const Tensor gradient = torch::autograd::grad({y.sum()}, {w.read()})[0];
    const torch::NoGradGuard no_gradients;
    Tensor(w.read()).sub_(gradient, 0.1);
  });
  const PlacedGraph placed = value_or_throw(place(f.graph(torch::ones({2, 2}))));
  EXPECT_EQ(device_of(placed, "mm"), "/job:worker/task:1/cpu:0");
  EXPECT_EQ(device_of(placed, "tanh_backward"), "/job:worker/task:1/cpu:0");
  EXPECT_EQ(device_of(placed, "sub_"), "/job:ps/task:0/cpu:0");
  EXPECT_EQ(device_of(placed, "sum"), "/job:worker/task:0/cpu:0");
}

TEST(Placer, ColocationFollowsATensorOrAVariable) {
  std::optional<Variable> v;
  {
    DeviceScope second("/job:ps/task:1");
    v.emplace("v", torch::ones({2}));
  }
  const auto f = function("f", [v = *v](const Tensor& x) {
    Tensor a, b;
    {
      DeviceScope first("/job:worker/task:1");
      a = x + 1;
    }
    {
      ColocationScope with(a);
      b = x * 2;
    }
    ColocationScope with(v.read());
    return a - b;
  });
  const PlacedGraph placed = value_or_throw(place(f.graph(torch::ones({2}))));
  EXPECT_EQ(device_of(placed, "mul"), "/job:worker/task:1/cpu:0");
  EXPECT_EQ(device_of(placed, "sub"), "/job:ps/task:1/cpu:0");
}

// Runs the parts of a graph in this process, in turns, each until it has to wait for another. This
// does what a cluster does, without one.
class LocalParts {
 public:
  LocalParts(const PlacedGraph& placed, std::vector<Tensor> variables)
      : placed_(placed), variables_(std::move(variables)), parts_(internal::cut(placed, kMaster)) {
    for (const GraphPart& part : parts_) {
      plans_.push_back(value_or_throw(internal::compile(part.graph)));
    }
  }

  const std::vector<GraphPart>& parts() const { return parts_; }
  int crossings() const { return crossings_; }

  std::vector<Tensor> run(const std::vector<Tensor>& inputs, uint64_t step = 0) {
    std::map<uint32_t, internal::Pieces> under_way;
    std::vector<std::unique_ptr<Mail>> mail;
    std::vector<std::unique_ptr<internal::PartRun>> runs;
    for (size_t i = 0; i < parts_.size(); ++i) {
      std::vector<Tensor> own_inputs, own_variables;
      for (uint32_t input : parts_[i].inputs) own_inputs.push_back(inputs[input]);
      for (uint32_t variable : parts_[i].variables) own_variables.push_back(variables_[variable]);
      mail.push_back(std::make_unique<Mail>(*plans_[i], under_way, crossings_));
      runs.push_back(std::make_unique<internal::PartRun>(
          plans_[i], own_variables, internal::make_step_generator(0, step),
          internal::PartRunOptions{.transfers = mail.back().get()}));
      throw_if_error(runs.back()->bind(own_inputs));
    }
    std::vector<bool> done(parts_.size(), false);
    for (int turn = 0; turn < 1000 && !std::ranges::all_of(done, std::identity()); ++turn) {
      for (size_t i = 0; i < runs.size(); ++i) {
        if (!done[i]) {
          done[i] = value_or_throw(runs[i]->advance()) == internal::PartRun::State::kDone;
        }
      }
    }
    EXPECT_THAT(done, testing::Each(true)) << "the parts wait for each other";
    EXPECT_TRUE(under_way.empty()) << "a value was sent, but never received";
    std::vector<Tensor> outputs(placed_.graph->def.outputs_size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      const std::vector<Tensor> own = runs[i]->outputs();
      for (size_t j = 0; j < own.size(); ++j) outputs[parts_[i].outputs[j]] = own[j];
    }
    return outputs;
  }

 private:
  struct Mail : internal::Transfers {
    Mail(const internal::Plan& plan, std::map<uint32_t, internal::Pieces>& under_way, int& count)
        : plan(plan), under_way(under_way), count(count) {}
    std::optional<internal::Pieces> take(uint32_t receive) override {
      const auto found = under_way.find(plan.graph->def.receives(receive).edge());
      if (found == under_way.end()) return std::nullopt;
      internal::Pieces pieces = std::move(found->second);
      under_way.erase(found);
      return pieces;
    }
    void send(uint32_t send, internal::Pieces pieces) override {
      ++count;
      const bool added =
          under_way.emplace(plan.graph->def.sends(send).edge(), std::move(pieces)).second;
      EXPECT_TRUE(added);
    }
    void flush() override {}

    const internal::Plan& plan;
    std::map<uint32_t, internal::Pieces>& under_way;
    int& count;
  };

  const PlacedGraph& placed_;
  const std::vector<Tensor> variables_;
  const std::vector<GraphPart> parts_;
  std::vector<std::shared_ptr<const internal::Plan>> plans_;
  int crossings_ = 0;
};

// Checks that the parts give the same bits as the whole graph, with this number of parts and of
// values that cross between tasks in each step.
void expect_same_in_parts(const Graph& graph, const std::vector<Tensor>& inputs,
                          const std::vector<Tensor>& variables, size_t parts, int crossings) {
  std::vector<Tensor> whole, apart;
  for (const Tensor& variable : variables) {
    whole.push_back(variable.detach().clone());
    apart.push_back(variable.detach().clone());
  }
  const PlacedGraph placed = value_or_throw(place(graph));
  LocalParts local(placed, apart);
  EXPECT_EQ(local.parts().size(), parts);
  for (uint64_t step = 0; step < 3; ++step) {
    const std::vector<Tensor> expected =
        value_or_throw(internal::replay(*internal::Access<Graph>::plan(graph), inputs, whole,
                                        internal::make_step_generator(0, step)));
    const std::vector<Tensor> outputs = local.run(inputs, step);
    ASSERT_EQ(outputs.size(), expected.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(outputs[i].equal(expected[i])) << "output " << i << " of step " << step;
      EXPECT_EQ(outputs[i].strides(), expected[i].strides());
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(apart[i].equal(whole[i])) << "variable " << i << " after step " << step;
    }
  }
  EXPECT_EQ(local.crossings(), 3 * crossings);
}

TEST(Cutter, AValueCrossesOnceToEachTaskThatUsesIt) {
  const auto f = function("f", [](const Tensor& x) {
    const Tensor a = x + 1;
    DeviceScope second("/job:worker/task:1");
    const Tensor b = a * 2, c = a * 3;
    DeviceScope third("/job:ps/task:0");
    return std::vector<Tensor>{b + a, c};
  });
  const Tensor x = torch::rand({4});
  expect_same_in_parts(f.graph(x), {x}, {}, 3, 3);  // a to two tasks, b to one
}

TEST(Cutter, AValueCrossesBeforeAndAfterAWriteToItsMemory) {
  const auto f = function("f", [](const Tensor& x) {
    Tensor a = x.clone();
    Tensor before, after;
    {
      DeviceScope second("/job:worker/task:1");
      before = a * 2;
    }
    {
      DeviceScope elsewhere("/job:ps/task:0");  // ignored: a write runs where the memory is
      a.add_(5);
    }
    {
      DeviceScope second("/job:worker/task:1");
      after = a * 2;
    }
    return std::vector<Tensor>{before, after, a};
  });
  const Tensor x = torch::rand({4});
  expect_same_in_parts(f.graph(x), {x}, {}, 2, 2);
}

TEST(Cutter, VariablesAreReadAndWrittenOnTheirTasks) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 2}));
  const Variable v("v", torch::rand({3, 2})), w("w", torch::rand({3, 2}));
  const auto f = function("f", [v, w](const Tensor& x) {
    const Tensor y = x.mm(v.read().t()) + w.read().sum();
    v.assign_add(y.t().mm(x));
    const Tensor read_after = v.read() * 2;
    w.assign(read_after);
    return std::vector<Tensor>{y, read_after, v.read()};
  });
  const Tensor x = torch::rand({2, 2});
  // Five values cross: v (also for its transposed view), w or its sum, the update, v again, and the
  // assignment.
  expect_same_in_parts(f.graph(x), {x}, {contents(v), contents(w)}, 3, 5);
}

TEST(Cutter, TransposedAndStridedValuesKeepTheirStrides) {
  const auto f = function("f", [](const Tensor& x) {
    Tensor a;
    {
      DeviceScope second("/job:worker/task:1");
      a = torch::tanh(x.t());
    }
    return a + 0;
  });
  const Tensor x = torch::rand({3, 5});
  expect_same_in_parts(f.graph(x), {x}, {}, 2, 1);
}

TEST(Cutter, RandomNumbersDoNotDependOnThePlacement) {
  const auto f = function("f", [](const Tensor& x) {
    const Tensor a = torch::dropout(x, 0.5, true);
    Tensor b;
    {
      DeviceScope second("/job:worker/task:1");
      b = torch::dropout(a, 0.5, true) + torch::rand({8});
    }
    return b + torch::rand({8});
  });
  const Tensor x = torch::ones({8});
  expect_same_in_parts(f.graph(x), {x}, {}, 2, 4);  // a, the generator in both directions, b
}

TEST(Cutter, ListOperatorsAreSplitByTask) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 2}));
  const Variable v("v", torch::rand({3})), w("w", torch::rand({3}));
  const auto f = function("f", [v, w](const Tensor& x) {
    const torch::NoGradGuard no_gradients;
    at::_foreach_add_({v.read(), w.read()}, {x, x * 2});
  });
  const Tensor x = torch::rand({3});
  expect_same_in_parts(f.graph(x), {x}, {contents(v), contents(w)}, 3, 1);
}

TEST(Cutter, SparseGradientsCross) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 1}));
  const Variable table("table", torch::rand({10, 3}));
  const auto f = function("f", [table](const Tensor& ids) {
    const Tensor rows = torch::embedding(table.read(), ids, -1, false, /*sparse=*/true);
    const Tensor gradient = torch::autograd::grad({(rows * rows).sum()}, {table.read()})[0];
    const torch::NoGradGuard no_gradients;
    Tensor(table.read()).add_(gradient, -0.1);
  });
  const Tensor ids = torch::tensor({1, 3, 3});
  const Graph graph = f.graph(ids);
  const PlacedGraph placed = value_or_throw(place(graph));
  const Tensor start = contents(table).detach();
  const Tensor whole = start.clone(), apart = start.clone();
  LocalParts local(placed, {apart});
  local.run({ids});
  value_or_throw(internal::replay(*internal::Access<Graph>::plan(graph), {ids}, {whole},
                                  internal::make_step_generator(0, 0)));
  EXPECT_TRUE(apart.equal(whole));
  EXPECT_FALSE(apart.equal(start));
}

TEST(Cutter, RejectsAnOperatorThatWritesToVariablesOnTwoTasks) {
  DeviceScope setter(replica_device_setter({.ps_tasks = 2}));
  const Variable mean("mean", torch::zeros({2}), {.trainable = false}),
      variance("variance", torch::ones({2}), {.trainable = false});
  const auto f = function("f", [mean, variance](const Tensor& x) {
    return torch::batch_norm(x, {}, {}, mean.read(), variance.read(), true, 0.1, 1e-5, false);
  });
  EXPECT_THAT(describe(place(f.graph(torch::rand({4, 2}))).status()),
              testing::AllOf(HasSubstr("variable 'mean'"), HasSubstr("variable 'variance'"),
                             HasSubstr("which are on different tasks")));
}

}  // namespace
}  // namespace trireme
