#include "trireme/data/generator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>

#include <set>
#include <stdexcept>
#include <string>

#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/from_loader.h"
#include "trireme/data/used_numbers.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Optional = std::optional<std::vector<at::Tensor>>;

// Seeds that `counted` was started with.
struct SeenSeeds {
  Mutex mutex;
  std::vector<uint64_t> seeds ABSL_GUARDED_BY(mutex);
};
SeenSeeds seen;

// Gives the numbers 0 to 4.
const NamedGenerator& counted() {
  static const NamedGenerator made = generator("counted", {{"n", at::kLong}}, [](uint64_t seed) {
    MutexLock lock(seen.mutex);
    seen.seeds.push_back(seed);
    return [i = int64_t{0}]() mutable -> Optional {
      if (i > 5) throw std::logic_error("called after the end");
      const int64_t number = i++;
      if (number == 5) return std::nullopt;
      return {{at::scalar_tensor(number, at::kLong)}};
    };
  });
  return made;
}

// Makes a generator of elements that are all the same.
NamedGenerator constant_generator(const std::string& name, std::vector<Column> columns,
                                  const std::vector<at::Tensor>& element) {
  return generator(name, std::move(columns),
                   [element](uint64_t) { return [element]() -> Optional { return element; }; });
}

std::vector<std::vector<double>> generated_values(Iterator iterator) {
  std::vector<std::vector<double>> all;
  while (auto element = iterator.next_optional()) {
    const at::Tensor flat = element->at(0).to(at::kDouble).flatten().contiguous();
    all.emplace_back(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  }
  return all;
}

TEST(Generator, IsASourceOfADataset) {
  const Dataset dataset = counted().dataset();
  EXPECT_EQ(dataset.size(), Dataset::kUnknown);
  EXPECT_EQ(dataset.element_specs(), (std::vector<ElementSpec>{{{at::kLong, {}}}}));
  EXPECT_EQ(dataset.describe(), "generator(counted)");
  EXPECT_THAT(
      generated_values(dataset.iterator()),
      ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(generated_values(dataset.skip(1).batch(3).iterator()),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4)));
}

TEST(Generator, StartsEachRepetitionWithAnotherSeed) {
  const auto seeds_of = [](uint64_t seed) {
    {
      MutexLock lock(seen.mutex);
      seen.seeds.clear();
    }
    generated_values(counted().dataset().repeat(3).iterator({.seed = seed}));
    MutexLock lock(seen.mutex);
    return seen.seeds;
  };
  const std::vector<uint64_t> one = seeds_of(1);
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(std::set<uint64_t>(one.begin(), one.end()).size(), 3u);
  EXPECT_EQ(seeds_of(1), one);
  EXPECT_NE(seeds_of(2), one);
}

TEST(Generator, IsFoundByNameInADefinition) {
  internal::DatasetData data = internal::data_of(counted().dataset().batch(5));
  EXPECT_THAT(generated_values(value_or_throw(internal::dataset_from(data)).iterator()),
              ElementsAre(ElementsAre(0, 1, 2, 3, 4)));
  data.def.mutable_steps(0)->mutable_generator()->set_name("elsewhere");
  Iterator iterator = value_or_throw(internal::dataset_from(data)).iterator();
  const Error error = error_of([&] { iterator.next(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("generator 'elsewhere'"));
  EXPECT_THAT(error.what(), HasSubstr("run the task with the client program's own binary"));
}

TEST(Generator, RejectsANameThatIsTaken) {
  counted();
  const Error error = error_of([] { constant_generator("counted", {}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("generator 'counted'"));
}

TEST(Generator, RejectsColumnsThatAreNotValid) {
  const auto none = constant_generator("no columns", {}, {});
  EXPECT_THAT(error_text([&] { none.dataset(); }), HasSubstr("it has no columns"));
  const auto twice = constant_generator("twice", {{"x"}, {"x"}}, {});
  EXPECT_THAT(error_text([&] { twice.dataset(); }), HasSubstr("two columns 'x'"));
}

TEST(Generator, ComparesElementsWithColumns) {
  const std::vector<Column> columns = {{"x", at::kFloat, {-1, 2}}, {"y", at::kLong}};
  const at::Tensor y = at::scalar_tensor(1, at::kLong);
  const auto error_for = [&](const std::string& name, const std::vector<at::Tensor>& element) {
    Iterator iterator = constant_generator(name, columns, element).dataset().iterator();
    return error_text([&] { iterator.next_optional(); });
  };
  EXPECT_EQ(error_for("right", {at::ones({7, 2}), y}), "no error");
  EXPECT_EQ(error_for("empty", {at::ones({0, 2}), y}), "no error");
  EXPECT_THAT(
      error_for("one tensor", {at::ones({7, 2})}),
      HasSubstr("element 0 is (float32[7, 2]), but its columns are (float32[-1, 2], int64[])"));
  EXPECT_THAT(error_for("wrong size", {at::ones({7, 3}), y}), HasSubstr("float32[7, 3]"));
  EXPECT_THAT(error_for("wrong rank", {at::ones({2}), y}), HasSubstr("float32[2]"));
  EXPECT_THAT(error_for("wrong dtype", {at::ones({7, 2}), at::ones({})}), HasSubstr("float32[]"));
  EXPECT_THAT(error_for("undefined", {at::Tensor(), y}), HasSubstr("undefined"));
  EXPECT_THAT(error_for("sparse", {at::ones({7, 2}).to_sparse(), y}), HasSubstr("not dense"));
}

TEST(Generator, ItsElementsAreContiguousAndHaveNoGradients) {
  const auto turned = constant_generator("turned", {{"x", at::kFloat, {2, 3}}},
                                         {at::ones({3, 2}).t().requires_grad_()});
  const at::Tensor element = turned.dataset().iterator().next();
  EXPECT_TRUE(element.is_contiguous());
  EXPECT_FALSE(element.requires_grad());
}

TEST(Generator, ItsExceptionsNameIt) {
  const auto broken = generator("broken", {{"x"}}, [](uint64_t) {
    return [i = 0]() mutable -> Optional {
      if (i++ == 1) throw std::runtime_error("cable is loose");
      return {{at::ones({})}};
    };
  });
  Iterator iterator = broken.dataset().iterator();
  iterator.next();
  const std::string error = error_text([&] { iterator.next(); });
  EXPECT_THAT(error, HasSubstr("generator 'broken'"));
  EXPECT_THAT(error, HasSubstr("cable is loose"));
  const auto empty = generator("without function", {{"x"}}, [](uint64_t) { return nullptr; });
  EXPECT_THAT(error_text([&] { empty.dataset().iterator().next(); }),
              HasSubstr("it returned no function"));
}

// Examples (i, -i).
class PairDataset : public torch::data::datasets::Dataset<PairDataset> {
 public:
  torch::data::Example<> get(size_t index) override {
    const auto number = static_cast<int64_t>(index);
    return {at::scalar_tensor(number, at::kLong), at::scalar_tensor(-number, at::kLong)};
  }
  torch::optional<size_t> size() const override { return 10; }
};

const std::vector<Column> kPairColumns = {{"x", at::kLong, {-1}}, {"y", at::kLong, {-1}}};

template <typename Sampler>
auto make_pair_loader(size_t workers) {
  return torch::data::make_data_loader<Sampler>(
      PairDataset().map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(4).workers(workers));
}

TEST(FromLoader, GivesTheBatchesOfALoader) {
  for (size_t workers : {0, 2}) {
    const auto pairs = from_loader("pairs " + std::to_string(workers), kPairColumns, [workers] {
      return make_pair_loader<torch::data::samplers::SequentialSampler>(workers);
    });
    EXPECT_THAT(generated_values(pairs.dataset().repeat(2).iterator()),
                ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7), ElementsAre(8, 9),
                            ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7), ElementsAre(8, 9)));
    const auto [x, y] = pairs.dataset().iterator().next<2>();
    EXPECT_TRUE(y.equal(-x));
  }
}

TEST(FromLoader, ARandomSamplerFollowsTheSeedOfTheIterator) {
  const auto pairs = from_loader("random pairs", kPairColumns, [] {
    return make_pair_loader<torch::data::samplers::RandomSampler>(0);
  });
  const Dataset dataset = pairs.dataset().repeat(2);
  const auto first = generated_values(dataset.iterator({.seed = 1}));
  at::rand({3});
  EXPECT_EQ(generated_values(dataset.iterator({.seed = 1})), first);
  EXPECT_NE(generated_values(dataset.iterator({.seed = 2})), first);
  ASSERT_EQ(first.size(), 6u);
  EXPECT_NE(first[0], first[3]);
  std::vector<double> epoch;
  for (int i = 0; i < 3; ++i) epoch.insert(epoch.end(), first[i].begin(), first[i].end());
  EXPECT_THAT(epoch, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(FromLoader, AcceptsBatchesWithoutTargets) {
  const auto rows = from_loader("rows", {{"x", at::kLong, {-1, 2}}}, [] {
    return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        torch::data::datasets::TensorDataset(at::arange(6).view({3, 2}))
            .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
        2);
  });
  EXPECT_THAT(generated_values(rows.dataset().iterator()),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5)));
}

TEST(FromLoader, AcceptsBatchesThatAreTensorsOrVectors) {
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(internal::tensors_of_batch(x).size(), 1u);
  EXPECT_EQ(internal::tensors_of_batch(std::vector<at::Tensor>{x, x, x}).size(), 3u);
}

}  // namespace
}  // namespace trireme
