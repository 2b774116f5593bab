// A program that trains on data from each kind of source is stopped at random moments and started
// again. It continues from its newest checkpoint, and counts every example as often as the dataset
// has it. TRIREME_STOPS sets the number of stops for each source, TRIREME_SEED their moments.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/data/from_loader.h"
#include "trireme/data/generator.h"
#include "trireme/data/tf_test_bytes.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/setting.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {
namespace {

using torch::Tensor;

constexpr int64_t kIds = 600;  // Examples of each source; ids.parquet has as many.
constexpr int64_t kRepetitions = 2;
constexpr int64_t kIdsOfStep = 6;
const int64_t kStops = setting("TRIREME_STOPS", 3);
const int64_t kStopSeed = setting("TRIREME_SEED", 20);

const NamedGenerator generated_ids =
    generator("ids", {{"id", torch::kLong}}, [](uint64_t) -> NextElement {
      return [next = int64_t{0}]() mutable -> std::optional<std::vector<Tensor>> {
        if (next == kIds) return std::nullopt;
        return {{torch::tensor(next++)}};
      };
    });

class IdsInMemory : public torch::data::datasets::Dataset<IdsInMemory, torch::data::TensorExample> {
 public:
  torch::data::TensorExample get(size_t index) override {
    return torch::tensor(static_cast<int64_t>(index));
  }
  torch::optional<size_t> size() const override { return kIds; }
};

const NamedGenerator loaded_ids = from_loader("loaded ids", {{"id", torch::kLong, {1}}}, [] {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      IdsInMemory().map(torch::data::transforms::Stack<torch::data::TensorExample>()), 1);
});

// Files that have the ids in several formats.
class IdFiles {
 public:
  IdFiles() {
    std::ofstream lines(path("text")), rows(path("csv"));
    std::ofstream records(path("tfrecord"), std::ios::binary);
    rows << "id\n";
    for (int64_t i = 0; i < kIds; ++i) {
      lines << absl::StrFormat("%03d\n", i);
      rows << i << "\n";
      records << internal::tf_record(
          internal::tf_example(internal::tf_entry("id", internal::tf_ints({i}))));
    }
    const Tensor ids = torch::arange(kIds);
    const internal::TensorToSave saved{"id", ids.scalar_type(), ids.sizes().vec(), ids.data_ptr(),
                                       ids.nbytes()};
    EXPECT_TRUE(internal::write_tensor_file(Files::local(), path("safetensors"), {saved}).ok());
  }

  std::string path(const std::string& format) const {
    return absl::StrCat(folder_.path(), "/ids.", format);
  }

 private:
  TemporaryFolder folder_;
};

// Returns a source of the ids, one for each element.
Dataset source_of_ids(const std::string& source, const IdFiles& files) {
  const std::vector<Column> columns = {{"id", torch::kLong}};
  if (source == "range") return Dataset::range(kIds);
  if (source == "tensors") return Dataset::from_tensors({torch::arange(kIds)});
  if (source == "text") return Dataset::text_lines(files.path("text"), {.bytes = 3});
  if (source == "csv") return Dataset::csv(files.path("csv"), {.columns = columns});
  if (source == "tf_records") {
    return Dataset::tf_records(files.path("tfrecord"), {.columns = columns});
  }
  if (source == "parquet") return Dataset::parquet(DATA_FOLDER "/pyarrow/ids.parquet");
  if (source == "safetensors") return Dataset::safetensors(files.path("safetensors"));
  if (source == "generator") return generated_ids.dataset();
  return loaded_ids.dataset();
}

// Returns the ids in a batch of a source. While the function is captured, texts have any bytes.
Tensor ids_in(const Tensor& batch) {
  if (batch.scalar_type() != torch::kByte) return batch.flatten();
  return (batch.to(torch::kLong) - '0')
      .matmul(torch::tensor({100, 10, 1}, torch::kLong))
      .remainder(kIds);
}

// One run of the program, from its start to its stop.
class ProgramRun {
 public:
  ProgramRun(const InProcessTestCluster& cluster, const Dataset& ids, Shard shard,
             const std::string& folder, bool positions = true)
      : strategy_(Cluster(cluster.spec()), {.job = "resumed-input"}),
        scope_(strategy_.scope()),
        counts_("counts", torch::zeros({kIds}, torch::kLong)),
        coordinator_(strategy_),
        data_(make_data(ids, shard)),
        manager_(folder, positions ? std::vector<Checkpointed>{counts_, data_}
                                   : std::vector<Checkpointed>{counts_}) {
    reached_ = manager_.restore_or_initialize();
  }

  // Runs steps until there are no more elements, at most `most`. Returns true at the end of the
  // data.
  bool train(int64_t most) {
    for (int64_t i = 0; i < most; ++i) {
      const bool done = !coordinator_.schedule(step_, data_.iterator()).has_value();
      ++reached_;
      // One worker may be at its end before the other.
      if (done && counted() == kIds * kRepetitions) return true;
    }
    return false;
  }
  void save() {
    coordinator_.join();
    manager_.save(++reached_);
    manager_.wait();
  }
  // Schedules steps that a stop may find queued, running or done.
  void schedule(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) coordinator_.schedule(step_, data_.iterator());
  }
  Tensor counts() const { return counts_.read(); }
  int64_t counted() const { return counts().sum().item<int64_t>(); }

 private:
  PerWorkerDataset make_data(const Dataset& ids, Shard shard) {
    if (shard == Shard::kDynamic) {
      return coordinator_.create_per_worker_dataset(ids.shuffle(40).batch(kIdsOfStep),
                                                    {.shard = shard, .epochs = kRepetitions});
    }
    return coordinator_.create_per_worker_dataset(strategy_.distribute_dataset(
        ids.shuffle(40).repeat(kRepetitions).batch(kIdsOfStep), {.shard = shard}));
  }

  const ParameterServerStrategy strategy_;
  const ParameterServers::Scope scope_;
  const Variable counts_;
  const Function<Tensor(Iterator&)> step_ =
      function("count", std::function<Tensor(Iterator&)>([this](Iterator& data) {
                 const auto element = data.next_optional();
                 if (!element) return Tensor();
                 const Tensor ids = ids_in((*element)[0]);
                 counts_.assign_add(
                     torch::zeros({kIds}, torch::kLong).index_add(0, ids, torch::ones_like(ids)));
                 return ids;
               }));
  ClusterCoordinator coordinator_;
  const PerWorkerDataset data_;
  CheckpointManager manager_;
  int64_t reached_ = 0;
};

using Case = std::tuple<std::string, Shard>;

class ResumedInput : public testing::TestWithParam<Case> {
 protected:
  const IdFiles files_;
  const TemporaryFolder folder_;
  std::mt19937 random_{static_cast<uint32_t>(kStopSeed)};
};

TEST_P(ResumedInput, CountsEveryExample) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kStopSeed));
  const auto& [source, shard] = GetParam();
  const Dataset ids = source_of_ids(source, files_);
  const InProcessTestCluster cluster({.workers = 2, .ps = 1});
  const int64_t steps = kIds * kRepetitions / kIdsOfStep;
  for (int64_t stop = 0; stop < kStops; ++stop) {
    ProgramRun run(cluster, ids, shard, folder_.path());
    run.train(static_cast<int64_t>(random_()) % (2 * steps / kStops));
    run.save();
    run.schedule(1 + static_cast<int64_t>(random_() % 10));
    if (random_() % 2 == 0) run.train(2);
  }
  ProgramRun last(cluster, ids, shard, folder_.path());
  EXPECT_TRUE(last.train(4 * steps)) << "the data does not end";
  const Tensor wrong = (last.counts() != kRepetitions).nonzero().flatten();
  EXPECT_EQ(wrong.numel(), 0) << "other counts for " << wrong;
}

// The check can fail: a program that does not save its positions counts examples again.
TEST(ResumedInputControl, AProgramWithoutPositionsIsNoticed) {
  const TemporaryFolder folder;
  const InProcessTestCluster cluster({.workers = 2, .ps = 1});
  {
    ProgramRun run(cluster, Dataset::range(kIds), Shard::kData, folder.path(), /*positions=*/false);
    run.train(20);
    run.save();
  }
  ProgramRun run(cluster, Dataset::range(kIds), Shard::kData, folder.path(), /*positions=*/false);
  run.train(20);
  EXPECT_GT(run.counts().max().item<int64_t>(), 1);
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const char* source : {"range", "tensors", "text", "csv", "tf_records", "parquet",
                             "safetensors", "generator", "loader"}) {
    cases.emplace_back(source, Shard::kData);
    const bool is_generated = source == std::string("generator") || source == std::string("loader");
    if (!is_generated) cases.emplace_back(source, Shard::kDynamic);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Sources, ResumedInput, testing::ValuesIn(cases()), [](const auto& info) {
  return absl::StrCat(std::get<0>(info.param),
                      std::get<1>(info.param) == Shard::kDynamic ? "_dynamic" : "");
});

}  // namespace
}  // namespace trireme
