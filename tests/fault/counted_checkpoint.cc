#include "tests/fault/counted_checkpoint.h"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fault/counted_examples.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/checkpoint_reader.h"

// The examples that a worker has drawn follow from its position alone. All but the last repetition
// of its dataset count each example once. The last one is replayed, and so are the draws that were
// returned, which are subtracted.

namespace trireme {
namespace {

using torch::Tensor;

using internal::CheckpointDirectory;
using internal::CheckpointReader;
using internal::SavedPosition;
using internal::SavedVariable;

// Adds `amount` to the counts of the examples that the draws [first, first + draws) have.
void count_draws(Tensor& counts, const Dataset& dataset, uint64_t seed, uint64_t first,
                 uint64_t draws, int amount) {
  if (draws == 0) return;
  Iterator iterator = dataset.skip(static_cast<int64_t>(first))
                          .take(static_cast<int64_t>(draws))
                          .iterator({.seed = seed});
  while (const auto element = iterator.next_optional()) {
    const Tensor& ids = element->at(0);
    counts.index_add_(0, ids, torch::full(ids.sizes(), amount, torch::kInt64));
  }
}

Tensor counts_at(const std::vector<SavedPosition>& positions) {
  Tensor counts = torch::zeros({kExamples}, torch::kInt64);
  const int workers = static_cast<int>(positions.size());
  const uint64_t draws_of_share = kExamples / workers / kExamplesOfStep;
  for (int worker = 0; worker < workers; ++worker) {
    const SavedPosition& position = positions[worker];
    const Dataset dataset = examples_of(worker, workers);
    const uint64_t repetitions = position.next / draws_of_share;
    counts.slice(0, worker, kExamples, workers) += static_cast<int64_t>(repetitions);
    count_draws(counts, dataset, position.seed, repetitions * draws_of_share,
                position.next % draws_of_share, 1);
    for (const uint64_t number : position.returned) {
      count_draws(counts, dataset, position.seed, number, 1, -1);
    }
  }
  return counts;
}

uint64_t steps_at(const std::vector<SavedPosition>& positions) {
  uint64_t steps = 0;
  for (const SavedPosition& position : positions) {
    steps += position.next - position.returned.size();
  }
  return steps;
}

std::string describe(const std::vector<SavedPosition>& positions) {
  std::string text = "positions:";
  for (const SavedPosition& position : positions) {
    absl::StrAppend(&text, " ", position.next, " less ", position.returned.size());
  }
  return text;
}

std::string difference(const Tensor& counted, const std::vector<SavedPosition>& positions) {
  const Tensor expected = counts_at(positions);
  if (counted.equal(expected)) return "";
  const Tensor wrong = (counted != expected).nonzero().flatten();
  const int64_t example = wrong[0].item<int64_t>();
  return absl::StrCat(wrong.numel(), " examples are counted wrongly, the first is ", example,
                      ", which was counted ", counted[example].item<int64_t>(), " times and drawn ",
                      expected[example].item<int64_t>(), " times; ", describe(positions));
}

}  // namespace

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : value_or_throw(CheckpointDirectory(Files::local(), folder).list())) {
    paths.push_back(entry.path);
  }
  return paths;
}

std::string disagreement(const std::string& checkpoint) {
  const auto reader = value_or_throw(CheckpointReader::open(Files::local(), checkpoint));
  throw_if_error(reader->verify());
  const internal::Manifest& manifest = reader->manifest();
  std::map<std::string, const SavedVariable*> variables;
  for (const SavedVariable& variable : manifest.variables) variables[variable.name] = &variable;
  const auto value = [&](const char* name) {
    return value_or_throw(reader->read(*variables.at(name)));
  };
  if (manifest.fences.empty()) return "there is no fence";
  if (manifest.iterators.size() != 1) return "there is no position";
  const std::vector<SavedPosition>& positions = manifest.iterators[0].positions;
  const Tensor counts = value("counts").flatten().to(torch::kInt64);
  const uint64_t steps = static_cast<uint64_t>(value("total").item<int64_t>());
  if (steps != steps_at(positions)) {
    return absl::StrCat(steps, " steps were counted; ", describe(positions));
  }
  if (manifest.step < steps) {
    return absl::StrCat("step ", manifest.step, ", but ", steps, " steps were counted");
  }
  for (const internal::SavedShard& shard : variables.at("weights")->shards) {
    if (shard.step == static_cast<double>(steps)) continue;
    return absl::StrCat(shard.contents.name, " had ", shard.step, " updates in ", steps, " steps");
  }
  return difference(counts, positions);
}

}  // namespace trireme
