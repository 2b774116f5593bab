#include "trireme/data/input_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/dataset.h"
#include "trireme/data/element_reader.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DatasetStepPtr last_step(const Dataset& dataset) {
  return Access<Dataset>::last(dataset);
}

std::vector<std::string> names_of(const Metrics& metrics) {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics.counters()) names.push_back(name);
  return names;
}

TEST(InputMetrics, CountsElementsAndTheTimeOfSteps) {
  Metrics metrics;
  const DatasetStepPtr step = last_step(Dataset::range(10).shuffle(4).batch(2).repeat());
  ElementReader reader(step, 0, std::make_shared<InputMetrics>(metrics, *step));
  for (uint64_t i = 0; i < 7; ++i) reader.take(i);
  const std::string name = "input/range(0, 10).shuffle(4).batch(2).repeat()/";
  EXPECT_THAT(names_of(metrics),
              ElementsAre(name + "02 batch/us", name + "03 repeat/us", name + "bad_records",
                          name + "elements", name + "wait_us"));
  EXPECT_EQ(metrics.counter(name + "elements").value(), 7);
  EXPECT_LE(metrics.counter(name + "02 batch/us").value(),
            metrics.counter(name + "wait_us").value());
}

TEST(InputMetrics, CountsPartsTogether) {
  Metrics metrics;
  const DatasetStepPtr whole = last_step(Dataset::range(10).batch(2));
  const DatasetStepPtr part = last_step(Dataset::range(10).skip(4).take(4).batch(2));
  const InputMetrics of_whole(metrics, *whole);
  const auto of_part = of_whole.for_part(*part);
  EXPECT_EQ(of_part->time_of(*part), of_whole.time_of(*whole));
  EXPECT_NE(of_part->time_of(*part), nullptr);
  EXPECT_EQ(of_part->time_of(*whole), nullptr);
}

TEST(InputMetrics, CutsALongNameBetweenCharacters) {
  for (const std::string lead : {"", "a"}) {
    std::string path = lead;
    for (int i = 0; i < 150; ++i) path += "\u00e9";  // two bytes
    Metrics metrics;
    const DatasetStepPtr step = last_step(Dataset::text_lines(path));
    const InputMetrics counted(metrics, *step);
    const std::string name = names_of(metrics).front();
    const std::string cut = name.substr(0, name.find("/", std::string("input/").size()));
    EXPECT_EQ(static_cast<uint8_t>(cut.back()), 0xa9) << "the second byte of a character";
  }
}

TEST(InputMetrics, BoundsTheNumberOfPipelines) {
  Metrics metrics;
  for (int i = 0; i < 200; ++i) InputMetrics(metrics, *last_step(Dataset::range(i)));
  EXPECT_LE(metrics.counters().size(), 3 * 101);
  EXPECT_THAT(names_of(metrics), testing::Contains(HasSubstr("input/others/")));
}

}  // namespace
}  // namespace trireme::internal
