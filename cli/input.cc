#include "cli/input.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trireme {
namespace {

constexpr char kInputPrefix[] = "input/";

struct PipelineStep {
  std::string name;
  uint64_t us = 0;  // with the steps before it
};

struct Pipeline {
  std::string task, name;
  uint64_t elements = 0, wait_us = 0, bad_records = 0;
  std::vector<PipelineStep> steps;  // from the source on
};

// Reads counters as trireme/data/input_metrics.h describes them.
std::vector<Pipeline> pipelines_of(const TaskCounters& tasks) {
  std::vector<Pipeline> pipelines;
  for (const auto& [task, counters] : tasks) {
    std::map<std::string, Pipeline> by_name;
    for (const auto& [counter, value] : counters) {
      if (!counter.starts_with(kInputPrefix)) continue;
      const std::string rest = counter.substr(sizeof(kInputPrefix) - 1);
      const size_t slash = rest.find('/');
      if (slash == std::string::npos) continue;
      const std::string name = rest.substr(0, slash), what = rest.substr(slash + 1);
      Pipeline& pipeline = by_name[name];
      if (what == "elements") pipeline.elements = value;
      if (what == "wait_us") pipeline.wait_us = value;
      if (what == "bad_records") pipeline.bad_records = value;
      if (what.ends_with("/us")) pipeline.steps.push_back({what.substr(3, what.size() - 6), value});
    }
    for (auto& [name, pipeline] : by_name) {
      pipeline.task = task;
      pipeline.name = name;
      std::replace(pipeline.name.begin(), pipeline.name.end(), '|', '/');
      pipelines.push_back(std::move(pipeline));
    }
  }
  return pipelines;
}

void print_pipelines(const std::vector<Pipeline>& pipelines) {
  if (pipelines.empty()) absl::PrintF("no task has drawn elements from a dataset\n");
  for (const Pipeline& pipeline : pipelines) {
    absl::PrintF("%s  %s\n", pipeline.task, pipeline.name);
    absl::PrintF("  %d elements; those who asked waited %.3f s, %.3f ms for each\n",
                 pipeline.elements, pipeline.wait_us / 1e6,
                 pipeline.elements == 0 ? 0 : pipeline.wait_us / 1e3 / pipeline.elements);
    if (pipeline.bad_records > 0) {
      absl::PrintF("  %d records were left out, because they are not valid\n",
                   pipeline.bad_records);
    }
    uint64_t before = 0;
    for (const PipelineStep& step : pipeline.steps) {
      // Steps behind a prefetch run on another thread and may have taken longer than it.
      const uint64_t own = step.us > before ? step.us - before : 0;
      absl::PrintF("  %10.3f s  %s\n", own / 1e6, step.name);
      before = step.us;
    }
  }
}

void print_pipelines_json(const std::vector<Pipeline>& pipelines) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Pipeline& pipeline : pipelines) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    for (const PipelineStep& step : pipeline.steps) {
      steps.push_back({{"step", step.name}, {"seconds_with_input", step.us / 1e6}});
    }
    list.push_back({{"task", pipeline.task},
                    {"pipeline", pipeline.name},
                    {"elements", pipeline.elements},
                    {"wait_seconds", pipeline.wait_us / 1e6},
                    {"bad_records", pipeline.bad_records},
                    {"steps", std::move(steps)}});
  }
  std::printf("%s\n", nlohmann::ordered_json{{"pipelines", list}}.dump(2).c_str());
}

}  // namespace

void show_input(const TaskCounters& tasks, bool json) {
  const std::vector<Pipeline> pipelines = pipelines_of(tasks);
  json ? print_pipelines_json(pipelines) : print_pipelines(pipelines);
}

}  // namespace trireme
