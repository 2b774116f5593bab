// Every layer of torch::nn trains and evaluates in a captured function as in eager code, in this
// process and over two tasks, or is refused. docs/layers.md has the outcome of each; with
// TRIREME_WRITE_LAYERS in the environment, the test writes it there instead of comparing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/layers/layer.h"
#include "trireme/base/error.h"
#include "trireme/capture/device_scope.h"
#include "trireme/function/module.h"
#include "trireme/optim/optimizer.h"
#include "trireme/runtime/check.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kSteps = 3;

std::vector<LayerFamily> all_families() {
  torch::manual_seed(1);
  return {linear_layers(),     convolution_layers(),   recurrent_layers(), attention_layers(),
          activation_layers(), normalization_layers(), dropout_layers(),   pooling_layers(),
          padding_layers(),    loss_layers()};
}

// Names the second task, if there is a session, for variables and operators of the layer.
std::optional<DeviceScope> on_second_task(const Session* session) {
  if (session == nullptr) return std::nullopt;
  return std::optional<DeviceScope>(std::in_place, "/job:worker/task:1");
}

// Compares the layer with eager code. In training mode its parameters are trained, and so is a
// factor of its first input, so that the layer is differentiated by its input too.
CheckReport check_layer(const LayerFamily::Entry& entry, bool training, Session* session) {
  torch::manual_seed(2);
  const Layer layer = entry.make();
  layer.module->train(training);
  std::vector<Variable> variables;
  {
    const auto scope = on_second_task(session);
    variables = track(*layer.module, "layer");
  }
  const bool scales = training && layer.inputs[0].is_floating_point();
  const Variable scale("scale", torch::ones({}));
  if (scales) variables.push_back(scale);
  std::optional<Sgd> optimizer;
  if (training) optimizer.emplace(variables, SgdOptions{.lr = 0.01});
  const auto step = function(entry.name, [&](Tensors inputs) {
    if (scales) inputs[0] = inputs[0] * scale.read();
    Tensors outputs;
    {
      const auto scope = on_second_task(session);
      outputs = layer.forward(inputs);
    }
    if (training) {
      Tensor loss = torch::zeros({});
      for (const Tensor& output : outputs) {
        if (output.requires_grad()) loss = loss + output.pow(2).mean();
      }
      optimizer->minimize(loss);
    }
    return outputs;
  });
  return check(step, {.steps = kSteps, .session = session}, layer.inputs);
}

// Returns the first words of a refusal as the cell of a table.
std::string refusal(const std::string& function, const std::string& message) {
  const std::string before = absl::StrCat("function '", function, "' cannot be captured: ");
  std::string words = message.starts_with(before) ? message.substr(before.size()) : message;
  for (const char* end : {". ", "; ", ", so ", " (docs/", "\n"}) {
    words = words.substr(0, words.find(end));
  }
  return absl::StrCat("refused: ", words);
}

// Returns what becomes of a layer in this process, or in a session with its master at `target`.
std::string outcome(const LayerFamily::Entry& entry, bool training, const std::string& target) {
  try {
    std::optional<Session> session;
    if (!target.empty()) session.emplace(target);
    const CheckReport report = check_layer(entry, training, session ? &*session : nullptr);
    EXPECT_TRUE(report.equal) << entry.name << (training ? ", train" : ", eval")
                              << (session ? ", two tasks" : "") << ": " << report.to_string();
    return report.equal ? "equal" : "differs";
  } catch (const Error& error) {
    return refusal(entry.name, error.message());
  } catch (const c10::Error& error) {
    return refusal(entry.name, error.what_without_backtrace());
  }
}

std::string row_of(const LayerFamily::Entry& entry, const std::string& target) {
  const std::string train = outcome(entry, true, ""), eval = outcome(entry, false, "");
  const std::string train_on_two = outcome(entry, true, target),
                    eval_on_two = outcome(entry, false, target);
  // The same refusal is not repeated.
  const std::string again = train == "equal" && eval == "equal" ? "equal" : "the same";
  const bool same_on_two = train_on_two == train && eval_on_two == eval;
  return absl::StrCat(
      "| ", entry.name, " | ", train, " | ", eval == train ? again : eval, " | ",
      same_on_two ? again : absl::StrCat("train: ", train_on_two, "; eval: ", eval_on_two), " |\n");
}

std::string text_of_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The table of a family in the page: where it begins and how long it is.
struct PagePart {
  size_t begin = std::string::npos, length = 0;
};
PagePart table_in(const std::string& page, const std::string& family) {
  const std::string mark = absl::StrCat("<!-- table of ", family, " -->\n");
  PagePart part;
  part.begin = page.find(mark);
  if (part.begin == std::string::npos) return part;
  part.begin += mark.size();
  const size_t end = page.find("\n\n", part.begin);
  part.length = (end == std::string::npos ? page.size() : end + 1) - part.begin;
  return part;
}

class Layers : public testing::TestWithParam<size_t> {};

TEST_P(Layers, BehaveAsTheirPageSays) {
  const LayerFamily family = all_families()[GetParam()];
  InProcessTestCluster cluster({.workers = 2, .ps = 0});
  const std::string target = cluster.target({"worker", 0});
  std::string table = "| layer | train | eval | two tasks |\n|---|---|---|---|\n";
  for (const LayerFamily::Entry& entry : family.entries()) table += row_of(entry, target);
  EXPECT_GT(cluster.describe({"worker", 1}).counters.at("step_operators_run"), 0u);
  std::string page = text_of_file(LAYERS_PAGE);
  const PagePart part = table_in(page, family.name());
  ASSERT_NE(part.begin, std::string::npos) << LAYERS_PAGE << " has no table of " << family.name();
  if (std::getenv("TRIREME_WRITE_LAYERS") != nullptr) {
    std::ofstream(LAYERS_PAGE) << page.replace(part.begin, part.length, table);
  } else {
    EXPECT_EQ(page.substr(part.begin, part.length), table)
        << "update docs/layers.md with: TRIREME_WRITE_LAYERS=1 build/release/bin/layers_test";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layers, testing::Range<size_t>(0, all_families().size()),
                         [](const auto& info) {
                           const std::string name = all_families()[info.param].name();
                           return std::regex_replace(name, std::regex("[^A-Za-z]+"), "_");
                         });

TEST(LayerList, HasEveryLayerOfLibTorchWithAForward) {
  // Containers that have no forward().
  std::set<std::string> listed = {"ModuleDict", "ModuleList", "ParameterDict", "ParameterList"};
  for (const LayerFamily& family : all_families()) {
    for (const auto& entry : family.entries()) {
      listed.insert(entry.name.substr(0, entry.name.find(' ')));
    }
  }
  const std::regex declaration(
      "\nTORCH_MODULE\\((\\w+)\\)|\nclass (\\w+) : public "
      "(?:torch::nn::)?ModuleHolder<");
  std::set<std::string> declared;
  for (const auto& file : std::filesystem::recursive_directory_iterator(TORCH_LAYERS)) {
    if (!file.is_regular_file()) continue;
    const std::string text = text_of_file(file.path());
    for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end;
         ++found) {
      declared.insert((*found)[1].matched ? (*found)[1] : (*found)[2]);
    }
  }
  EXPECT_EQ(listed, declared);
}

}  // namespace
}  // namespace trireme
