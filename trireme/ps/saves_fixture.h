#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/files.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/ps/ps_saver.h"
#include "trireme/ps/test_servers.h"
#include "trireme/rpc/temporary_folder.h"

// Tools for tests of saves.
namespace trireme::internal {

// Variables on servers, and a client that trains them.
class TrainedVariables {
 public:
  struct Spec {
    std::string name;
    std::vector<int64_t> sizes;
    std::string rule;  // empty for no optimizer
  };

  // The variables belong to no job if `job` is empty.
  TrainedVariables(const TestServers& servers, int64_t shards, const std::vector<Spec>& specs,
                   const std::string& job = {})
      : client_(servers.client()), specs_(specs) {
    if (!job.empty()) throw_if_error(client_->join({.id = job}, after(std::chrono::seconds(20))));
    ShardPlacer placer(client_->servers(), Placement::kBalanced, FixedPartitioner(shards));
    std::vector<VariableSpec> placed;
    for (const Spec& spec : specs) placed.push_back({spec.name, spec.sizes, c10::kFloat});
    std::vector<PsClient::PlacedVariable> made;
    for (VariableLayout& layout : placer.place(placed)) {
      const double fill = 0.25 * (1 + static_cast<double>(made.size()));
      made.push_back({.layout = std::move(layout), .fill = fill});
    }
    variables_ = value_or_throw(client_->create(made));
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].rule.empty()) continue;
      throw_if_error(client_->set_optimizer({variables_[i]}, *make_rule(specs[i].rule, {})));
    }
    throw_if_error(client_->begin_writer(kWriter));
  }

  PsClient& client() { return *client_; }
  const std::vector<PsVariable>& variables() const { return variables_; }

  // Pushes a dense update to a variable: a gradient if it has an optimizer. Thread-safe.
  void push(size_t i, double value) {
    const auto kind = specs_[i].rule.empty() ? Update::Kind::kAdd : Update::Kind::kGradient;
    push({variables_[i], kind, {}, values(specs_[i].sizes, value)});
  }
  // Pushes an update of some rows.
  void push_rows(size_t i, std::vector<int64_t> rows, double value) {
    const auto kind = specs_[i].rule.empty() ? Update::Kind::kAdd : Update::Kind::kGradient;
    std::vector<int64_t> sizes = specs_[i].sizes;
    sizes[0] = static_cast<int64_t>(rows.size());
    at::Tensor ids = at::empty({sizes[0]}, at::kLong);
    std::copy(rows.begin(), rows.end(), ids.data_ptr<int64_t>());
    push({variables_[i], kind, ids, values(sizes, value)});
  }
  // Pushes `steps` different updates to each variable.
  void train(int steps, double first = 1) {
    for (int step = 0; step < steps; ++step) {
      for (size_t i = 0; i < specs_.size(); ++i) push(i, first + 0.5 * step);
    }
  }

  std::vector<at::Tensor> pull() {
    std::vector<PsPull> pulls;
    for (const PsVariable& variable : variables_) pulls.push_back({variable});
    return value_or_throw(client_->pull(pulls));
  }

 private:
  static constexpr uint64_t kWriter = 9;

  // Returns values that differ from element to element.
  static at::Tensor values(const std::vector<int64_t>& sizes, double value) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    return at::arange(count, at::kFloat).remainder(1001).mul(0.001).add(value).reshape(sizes);
  }
  void push(const PsPush& update) {
    throw_if_error(client_->push({update}, {.id = {kWriter, sequence_++, 0}}));
  }

  std::unique_ptr<PsClient> client_;
  const std::vector<Spec> specs_;
  std::vector<PsVariable> variables_;
  std::atomic<uint64_t> sequence_ = 1;
};

// Checkpoints in a temporary folder.
class TestCheckpoints {
 public:
  explicit TestCheckpoints(std::string path) : directory_(Files::local(), std::move(path)) {}

  // Creates the folder of a checkpoint with a probe, and begins to save into it.
  absl::StatusOr<std::unique_ptr<PsSave>> begin(TrainedVariables& trained, uint64_t step,
                                                bool stream) {
    path_ = value_or_throw(directory_.begin(step));
    return begin_in(trained, path_, stream);
  }
  static absl::StatusOr<std::unique_ptr<PsSave>> begin_in(TrainedVariables& trained,
                                                          const std::string& folder, bool stream) {
    const std::string probe = value_or_throw(write_probe(Files::local(), folder));
    return PsSave::begin(trained.client(), trained.variables(),
                         {.directory = folder,
                          .probe = probe,
                          .id = "save" + std::to_string(++saves_),
                          .stream = stream},
                         after(std::chrono::seconds(60)));
  }
  // Waits for the save and makes its folder a checkpoint. Returns a reader of it.
  std::unique_ptr<CheckpointReader> commit(PsSave& save, uint64_t step,
                                           const PsSave::Progress& progress = {}) {
    PsSaved saved = value_or_throw(save.wait(progress));
    throw_if_error(Files::local().remove(path_ + "/" + kProbeName));
    Manifest manifest;
    manifest.step = step;
    manifest.id = "test";
    manifest.saved_at = "2026-01-01T00:00:00Z";
    manifest.files = std::move(saved.files);
    manifest.variables = std::move(saved.variables);
    throw_if_error(directory_.commit(path_, manifest));
    return value_or_throw(CheckpointReader::open(Files::local(), path_));
  }
  std::unique_ptr<CheckpointReader> save(TrainedVariables& trained, uint64_t step, bool stream) {
    const auto save = value_or_throw(begin(trained, step, stream));
    return commit(*save, step);
  }

  const std::string& path() const { return path_; }

 private:
  inline static std::atomic<int> saves_ = 0;
  CheckpointDirectory directory_;
  std::string path_;
};

// Returns all tensors of a checkpoint, by variable and slot, and the steps of the optimizers.
inline std::map<std::string, at::Tensor> state_of(const CheckpointReader& reader) {
  std::map<std::string, at::Tensor> state;
  for (const SavedVariable& variable : reader.manifest().variables) {
    state[variable.name] = value_or_throw(reader.read(variable));
    for (size_t slot = 0; slot < variable.slots.size(); ++slot) {
      state[variable.name + "#" + variable.slots[slot]] =
          value_or_throw(reader.read_slot(variable, static_cast<int>(slot)));
    }
    state[variable.name + " step"] = at::full({}, variable.shards.front().step);
  }
  return state;
}

inline void expect_same_state(const CheckpointReader& a, const CheckpointReader& b) {
  const auto one = state_of(a), other = state_of(b);
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, tensor] : one) {
    ASSERT_TRUE(other.contains(name)) << name;
    EXPECT_TRUE(tensor.equal(other.at(name))) << name;
  }
}

inline std::vector<PsLoad> loads_of(const TrainedVariables& trained, const Manifest& manifest) {
  std::vector<PsLoad> loads;
  for (size_t i = 0; i < trained.variables().size(); ++i) {
    loads.push_back({trained.variables()[i], &manifest.variables[i], /*slots=*/true});
  }
  return loads;
}

}  // namespace trireme::internal
