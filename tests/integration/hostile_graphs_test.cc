// A malicious graph cannot harm a server or its other clients: it fails with an error or gives what
// eager LibTorch gives, the server process survives, and another client program that uses the same
// server gets right results all the time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <csignal>
#include <future>
#include <limits>

#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/function/function.h"
#include "trireme/graph/plan.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Body = std::function<Tensors(const Tensors&)>;
using Edit = std::function<void(proto::GraphDef&)>;

constexpr int64_t kMany = 200000;

class HostileGraphs : public testing::Test {
 protected:
  HostileGraphs() {
    auto running = std::make_shared<std::promise<void>>();
    auto other = Subprocess::start({.argv = {STEADY_SESSION, cluster_.target(kServer)},
                                    .on_stdout = [this, running](const std::string& line) {
                                      last_line_ = line;
                                      if (line == "running") running->set_value();
                                    }});
    other_ = value_or_throw(std::move(other));
    EXPECT_EQ(running->get_future().wait_for(seconds(60)), std::future_status::ready);
  }

  // Checks that the server is the same process and that the other program had no wrong step.
  void TearDown() override {
    EXPECT_EQ(cluster_.pid(kServer), pid_);
    EXPECT_TRUE(cluster_.is_running(kServer));
    EXPECT_EQ(session_.run([] { return torch::ones({1}); }).item<float>(), 1);
    EXPECT_TRUE(other_->is_running()) << last_line_;
    other_->send_signal(SIGTERM);
    const auto status = other_->wait(after(seconds(60)));
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->ok()) << last_line_;
    EXPECT_THAT(last_line_, HasSubstr(" steps"));
  }

  // Captures a graph, changes it with `edit` as a malicious client could, and runs it remotely.
  Tensors run(const Body& body, const Tensors& small, const Edit& edit, const Tensors& arguments) {
    const auto function = trireme::function("hostile", body, {.check_capture = false});
    const auto plan = internal::Access<Graph>::plan(function.graph(small));
    edit(const_cast<proto::GraphDef&>(plan->graph->def));
    return session_.run({.timeout = seconds(20)}, function, arguments);
  }

  std::string error(const Body& body, const Tensors& small, const Edit& edit,
                    const Tensors& arguments) {
    return error_text([&] { run(body, small, edit, arguments); });
  }

  static void rename(proto::GraphDef& def, const std::string& from, const std::string& to) {
    for (proto::Node& node : *def.mutable_nodes()) {
      if (node.op() == from) node.set_op(to);
    }
  }

  const TaskId kServer = {"worker", 0};
  ProcessCluster cluster_{{{.workers = 1, .ps = 0}}};
  const pid_t pid_ = cluster_.pid(kServer);
  Session session_{cluster_.target(kServer), {.timeout = seconds(20)}};
  std::unique_ptr<Subprocess> other_;
  std::string last_line_;
};

const Edit kUnchanged = [](proto::GraphDef&) {};

TEST_F(HostileGraphs, AnExpandedElementIsReadAsThatElement) {
  const Tensors given = run(
      [](const Tensors& t) {
        const Tensor x = torch::zeros({1, kMany, 1}), weight = torch::ones({kMany});
        const Tensor last = (t[0] * torch::ones({4096})).narrow(0, 4095, 1);
        return Tensors{std::get<0>(at::native_group_norm(x, weight, (t[0] * 1).expand({kMany}), 1,
                                                         kMany, 1, kMany, 1e-5)),
                       std::get<0>(at::native_group_norm(x, weight, last.expand({kMany}), 1, kMany,
                                                         1, kMany, 1e-5))};
      },
      {torch::full({1}, 0.25)}, kUnchanged, {torch::full({1}, 0.25)});
  for (const Tensor& tensor : given) {
    EXPECT_EQ(tensor.numel(), kMany);
    EXPECT_TRUE(tensor.eq(0.25).all().item<bool>());
  }
}

TEST_F(HostileGraphs, RejectsQuotientsThatOverflow) {
  const auto longs = [](int64_t number) { return torch::full({1}, number, torch::kLong); };
  for (const Body& body :
       std::vector<Body>{[](const Tensors& t) { return Tensors{torch::div(t[0], t[1], "trunc")}; },
                         [](const Tensors& t) { return Tensors{torch::div(t[0], t[1], "floor")}; },
                         [](const Tensors& t) { return Tensors{torch::floor_divide(t[0], t[1])}; },
                         [](const Tensors& t) { return Tensors{torch::remainder(t[0], t[1])}; },
                         [](const Tensors& t) { return Tensors{torch::fmod(t[0], t[1])}; }}) {
    EXPECT_THAT(error(body, {longs(6), longs(2)}, kUnchanged,
                      {longs(std::numeric_limits<int64_t>::min()), longs(-1)}),
                HasSubstr("smallest number of its dtype by -1"));
  }
}

TEST_F(HostileGraphs, RejectsOperatorsThatAreNotAllowed) {
  // The running time of this operator depends on a number in a tensor.
  EXPECT_THAT(
      error([](const Tensors& t) { return Tensors{torch::atan2(t[0], t[1])}; },
            {torch::zeros({1}), torch::ones({1})},
            [](auto& def) { rename(def, "aten::atan2", "aten::special_laguerre_polynomial_l"); },
            {torch::zeros({1}), torch::full({1}, 1e18)}),
      HasSubstr("may not be used in a graph"));
  // Operators that write into memory that the graph chooses, here an element that is expanded.
  const auto with_output = [](const std::string& op) {
    return [op](proto::GraphDef& def) {
      for (proto::Node& node : *def.mutable_nodes()) {
        if (node.op() != op) continue;
        node.set_op(op + ".out");
        node.add_arguments()->set_value(1);
      }
    };
  };
  EXPECT_THAT(error(
                  [](const Tensors& t) {
                    return Tensors{at::im2col(t[0], {1, 1}, {1, 1}, {0, 0}, {1, 1}), t[1] * 1};
                  },
                  {torch::ones({1, 1, 1, 5}), torch::zeros({1})}, with_output("aten::im2col"),
                  {torch::ones({1, 1, 1, 5}), torch::zeros({1})}),
              HasSubstr("may not be used in a graph"));
  EXPECT_THAT(
      error(
          [](const Tensors& t) {
            return Tensors{at::col2im(t[0], {1, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}), t[1] * 1};
          },
          {torch::ones({1, 1, 5}), torch::zeros({1})}, with_output("aten::col2im"),
          {torch::ones({1, 1, 5}), torch::zeros({1})}),
      HasSubstr("may not be used in a graph"));
}

TEST_F(HostileGraphs, RejectsTensorsWithoutContents) {
  const auto on_meta = [](proto::GraphDef& def) {
    for (proto::Node& node : *def.mutable_nodes()) {
      if (node.op() == "aten::zeros") node.mutable_arguments(3)->set_device("meta");
    }
  };
  const Body zeros = [](const Tensors& t) { return Tensors{torch::zeros({1000000}) + t[0]}; };
  EXPECT_THAT(error(zeros, {torch::ones({1})}, on_meta, {torch::ones({1})}),
              HasSubstr("argument 'device' must be"));
}

TEST_F(HostileGraphs, RejectsWritesOutsideOfATensor) {
  // Noise for many elements is written to a single one.
  const Body noise = [](const Tensors& t) {
    Tensor written = at::as_strided(t[1] * 1, {kMany}, {2});
    return Tensors{at::rrelu_with_noise(t[0], written, 0.1, 0.3, true)};
  };
  const auto many_on_one = [](proto::GraphDef& def) {
    for (proto::Node& node : *def.mutable_nodes()) {
      if (node.op() != "aten::as_strided") continue;
      node.mutable_arguments(2)->mutable_integers()->set_items(0, 0);
    }
  };
  const Tensors arguments = {-torch::ones({kMany}), torch::zeros({2 * kMany})};
  EXPECT_THAT(error(noise, arguments, many_on_one, arguments),
              HasSubstr("several elements share the same memory"));
  // A tensor grows while its old block may still be in flight.
  const auto grows = [](proto::GraphDef& def) {
    for (proto::Node& node : *def.mutable_nodes()) {
      if (node.op() != "aten::resize_") continue;
      node.mutable_arguments(1)->mutable_integers()->set_items(0, kMany);
    }
  };
  const Body resized = [](const Tensors& t) { return Tensors{(t[0] * 1).resize_({2, 2})}; };
  EXPECT_THAT(error(resized, {torch::ones({4})}, grows, {torch::ones({4})}),
              HasSubstr("cannot grow"));
}

TEST_F(HostileGraphs, RejectsBadArgumentsThatKernelsDoNotCheck) {
  const Body loss = [](const Tensors& t) {
    const Tensor gradient = t[0].slice(0, 0, 4096);
    return Tensors{at::multi_margin_loss_backward(gradient, t[1], t[2], 1, 1, {}, 0)};
  };
  const auto one_gradient = [](proto::GraphDef& def) {
    for (proto::Node& node : *def.mutable_nodes()) {
      if (node.op() == "aten::slice.Tensor") node.mutable_arguments(3)->set_integer(1);
    }
  };
  const Tensors arguments = {torch::ones({4097}), torch::rand({4096, 3}),
                             torch::zeros({4096}, torch::kLong)};
  EXPECT_THAT(error(loss, arguments, one_gradient, arguments),
              HasSubstr("'grad_output' has 1 elements"));
  const Body unpacked = [](const Tensors& t) {
    return Tensors{std::get<0>(at::lu_unpack(t[0], t[1]))};
  };
  EXPECT_THAT(error(unpacked, {torch::rand({2, 2}), torch::ones({2}, torch::kInt)}, kUnchanged,
                    {torch::rand({2, 2}), torch::full({2}, 1 << 30, torch::kInt)}),
              HasSubstr("'pivots' holds"));
}

}  // namespace
}  // namespace trireme
