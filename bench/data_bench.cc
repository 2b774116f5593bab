// Reads files into batches, for bench/compare.
//
//   data_bench
//
// Executes each line of its input, "csv FILE", "tfrecord FILE" or "parquet FILE", and answers with
// the line "done" and a JSON object: the number of records, and the seconds from the making of the
// dataset to its end. The files have the fields of anchors/data_files.py. Batches have 1,024
// records, and two threads decode.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::bench {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kBatch = 1024, kTextBytes = 16;

// Returns the columns of the records: 10 integers, 20 floats, and 10 texts if `with_texts`.
std::vector<Column> columns(bool with_texts) {
  std::vector<Column> columns;
  for (int i = 0; i < 10; ++i) {
    columns.push_back({.name = "i" + std::to_string(i), .dtype = at::kLong});
  }
  for (int i = 0; i < 20; ++i) columns.push_back({.name = "f" + std::to_string(i)});
  for (int i = 0; i < 10 && with_texts; ++i) {
    columns.push_back(text_column("s" + std::to_string(i), kTextBytes));
  }
  return columns;
}

Dataset open(const std::string& format, const std::string& file) {
  if (format == "csv") return Dataset::csv(file, {.columns = columns(true), .threads = kThreads});
  if (format == "tfrecord") {
    return Dataset::tf_records(file, {.columns = columns(true), .threads = kThreads});
  }
  if (format == "parquet") {
    return Dataset::parquet(file, {.columns = columns(false), .threads = kThreads});
  }
  throw std::invalid_argument("there is no command '" + format + "'");
}

int64_t count_records(const Dataset& dataset) {
  int64_t count = 0;
  Iterator batches = dataset.batch(kBatch).iterator();
  while (const auto batch = batches.next_optional()) count += batch->front().size(0);
  return count;
}

int run() {
  at::set_num_threads(1);
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string format, file;
    words >> format >> file;
    const auto start = std::chrono::steady_clock::now();
    const int64_t records = count_records(open(format, file));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("done {\"records\": %lld, \"seconds\": %.6f}\n", static_cast<long long>(records),
                seconds.count());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main() {
  try {
    return trireme::bench::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_bench: %s\n", error.what());
    return 1;
  }
}
