// The C++ side of tf_data_test.py: runs pipelines over the files in a folder, and prints their
// elements as one JSON object.
//
// usage: pipelines_program FOLDER PIPELINE...
//
// The pipelines are those of data/write_with_tensorflow.py and data/write_with_pyarrow.py, by the
// same names. For each, the object has {"elements": [...]} or {"error": "..."}. data/expected.py
// describes how elements are written.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/dataset.h"

namespace tr = trireme;
using nlohmann::json;
using torch::Tensor;
using tr::Column;
using tr::Dataset;

namespace {

constexpr int64_t kTextBytes = 24;
constexpr int64_t kEverything = 1000000;  // More than there are records.
using Names = std::vector<std::string>;
using Pipelines = std::map<std::string, std::function<Dataset()>>;

json number_json(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

// Returns each row as a text of characters up to 255, without the zeros at its end.
json text_json(const Tensor& tensor) {
  json rows = json::array();
  const int64_t size = tensor.size(-1);
  const auto* bytes = tensor.const_data_ptr<uint8_t>();
  for (int64_t row = 0; row < tensor.numel() / size; ++row, bytes += size) {
    std::string text;
    int64_t length = size;
    while (length > 0 && bytes[length - 1] == 0) --length;
    for (int64_t i = 0; i < length; ++i) {  // In UTF-8, as JSON needs it.
      if (bytes[i] < 0x80) {
        text += static_cast<char>(bytes[i]);
      } else {
        text += static_cast<char>(0xc0 | (bytes[i] >> 6));
        text += static_cast<char>(0x80 | (bytes[i] & 0x3f));
      }
    }
    rows.push_back(text);
  }
  return rows;
}

template <typename T>
json numbers_json(const Tensor& tensor) {
  json numbers = json::array();
  const T* values = tensor.const_data_ptr<T>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      numbers.push_back(number_json(values[i]));
    } else {
      numbers.push_back(values[i]);
    }
  }
  return numbers;
}

json tensor_json(const Tensor& given) {
  const Tensor tensor = given.contiguous();
  const json shape = tensor.sizes().vec();
  switch (tensor.scalar_type()) {
    case torch::kByte:
      return {"uint8", shape, text_json(tensor)};
    case torch::kBool:
      return {"bool", shape, numbers_json<bool>(tensor)};
    case torch::kInt:
      return {"int32", shape, numbers_json<int32_t>(tensor)};
    case torch::kLong:
      return {"int64", shape, numbers_json<int64_t>(tensor)};
    case torch::kFloat:
      return {"float32", shape, numbers_json<float>(tensor)};
    case torch::kDouble:
      return {"float64", shape, numbers_json<double>(tensor)};
    default:
      throw std::runtime_error("unexpected dtype");
  }
}

json elements_json(const Dataset& dataset) {
  json elements = json::array();
  tr::Iterator iterator = dataset.iterator();
  while (const auto element = iterator.next_optional()) {
    json tensors = json::array();
    for (const Tensor& tensor : *element) tensors.push_back(tensor_json(tensor));
    elements.push_back(std::move(tensors));
  }
  return elements;
}

// The sources of a folder. Without columns they read "id" and "score".
class Files {
 public:
  explicit Files(std::string folder) : folder_(std::move(folder)) {}

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  Dataset text(const Names& names) const {
    return Dataset::text_lines(paths(names, ".txt"), {.bytes = kTextBytes});
  }
  Dataset csv(const Names& names, const Names& columns = {"id", "score"}) const {
    const std::map<std::string, Column> known = {
        {"id", {.name = "id", .dtype = torch::kLong}},
        {"score", {.name = "score", .missing = -1.5}},
        {"word", tr::text_column("word", kTextBytes)},
        {"flag", {.name = "flag", .dtype = torch::kInt, .missing = 7}},
        {"precise", {.name = "precise", .dtype = torch::kDouble}}};
    return Dataset::csv(paths(names, ".csv"), {.columns = chosen(known, columns)});
  }
  Dataset records(const Names& names, const Names& columns = {"id", "score"}) const {
    return record_files(paths(names, ".tfrecord"), columns);
  }
  Dataset record_files(const tr::FileNames& files, const Names& columns) const {
    Column note = tr::text_column("note", kTextBytes);
    note.missing = 0;
    const std::map<std::string, Column> known = {
        {"id", {.name = "id", .dtype = torch::kLong}},
        {"score", {.name = "score"}},
        {"word", tr::text_column("word", kTextBytes)},
        {"weights", {.name = "weights", .sizes = {3}}},
        {"tags", {.name = "tags", .dtype = torch::kLong, .sizes = {-1}}},
        {"maybe", {.name = "maybe", .dtype = torch::kLong, .missing = -1}},
        {"rate", {.name = "rate", .missing = 0.5}},
        {"note", note}};
    return Dataset::tf_records(files, {.columns = chosen(known, columns)});
  }
  Dataset parquet(const Names& names, const Names& columns = {"id", "score"}) const {
    const std::map<std::string, Column> known = {
        {"id", {.name = "id", .dtype = torch::kLong}},
        {"score", {.name = "score", .dtype = torch::kDouble}},
        {"small", {.name = "small", .dtype = torch::kInt}},
        {"flag", {.name = "flag", .dtype = torch::kBool}},
        {"maybe", {.name = "maybe", .dtype = torch::kLong, .missing = -1}},
        {"rate", {.name = "rate", .missing = 0.5}},
        {"word", tr::text_column("word", kTextBytes)},
        {"plain", tr::text_column("plain", kTextBytes)},
        {"tags", {.name = "tags", .dtype = torch::kLong, .sizes = {-1}}},
        {"vector", {.name = "vector", .sizes = {3}}},
        {"fixed", {.name = "fixed", .sizes = {3}}}};
    return Dataset::parquet(paths(names, ".parquet"), {.columns = chosen(known, columns)});
  }

 private:
  Names paths(const Names& names, const std::string& ending) const {
    Names paths;
    for (const std::string& name : names) paths.push_back(path(name + ending));
    return paths;
  }
  static std::vector<Column> chosen(const std::map<std::string, Column>& known,
                                    const Names& columns) {
    std::vector<Column> chosen;
    for (const std::string& column : columns) chosen.push_back(known.at(column));
    return chosen;
  }

  const std::string folder_;
};

int64_t records_of(const Files& files) {
  int64_t count = 0;
  tr::Iterator iterator = files.records({"a"}).iterator();
  while (iterator.next_optional()) ++count;
  return count;
}

Dataset tensors(int64_t count) {
  return Dataset::from_tensors(
      {torch::arange(2 * count, torch::kFloat).reshape({count, 2}) / 7, torch::arange(count) * 3});
}

Tensor even(const Tensor& id, const Tensor&) {
  return id % 2 == 0;
}

std::pair<Tensor, Tensor> scaled(const Tensor& id, const Tensor& score) {
  return {id + 100, score * 2 + 1};
}

const Names kFiles = {"a", "empty", "b", "c"};

Pipelines sources(const Files& f) {
  return {
      {"range_down", [] { return Dataset::range(10, 0, -3); }},
      {"tensors", [&f] { return tensors(records_of(f)); }},
      {"text", [&f] { return f.text({"a"}); }},
      {"text_crlf", [&f] { return f.text({"b"}); }},
      {"text_files", [&f] { return f.text(kFiles); }},
      {"csv",
       [&f] {
         return f.csv({"a"}, {"id", "score", "word", "flag", "precise"});
       }},
      {"csv_crlf",
       [&f] {
         return f.csv({"b"}, {"id", "word", "precise"});
       }},
      {"csv_other_order",
       [&f] {
         return f.csv({"c"}, {"precise", "word", "id"});
       }},
      {"csv_files", [&f] { return f.csv(kFiles); }},
      {"csv_without_names",
       [&f] {
         return Dataset::csv(f.path("semicolons.csv"),
                             {.columns = {{.name = "id", .dtype = torch::kLong},
                                          tr::text_column("word", kTextBytes),
                                          {.name = "number"}},
                              .delimiter = ';',
                              .has_header = false});
       }},
      {"csv_numbers", [&f] { return Dataset::csv(f.path("numbers.csv")); }},
      {"records",
       [&f] {
         return f.records({"a"}, {"id", "score", "word", "weights"});
       }},
      {"records_with_missing_features",
       [&f] {
         return f.records({"c"}, {"id", "maybe", "rate", "note"});
       }},
      {"records_files", [&f] { return f.records(kFiles); }},
      {"records_pattern", [&f] { return f.record_files(f.path("*.tfrecord"), {"id"}); }},
      {"records_of_an_empty_file", [&f] { return f.records({"empty"}); }},
      {"safetensors",
       [&f] {
         return Dataset::safetensors(
             f.path("numbers.safetensors"),
             {.columns = {{.name = "x", .sizes = {2}}, {.name = "y", .dtype = torch::kLong}}});
       }},
  };
}

Pipelines batches(const Files& f) {
  const auto tags = [&f] { return f.records({"a", "b"}, {"tags", "id"}); };
  return {
      {"batch",
       [&f] {
         return f.csv({"a", "b"}, {"id", "word"}).batch(4);
       }},
      {"batch_drop_remainder",
       [&f] {
         return f.records({"a", "b"}).batch(4, {.drop_remainder = true});
       }},
      {"batch_larger_than_the_data", [&f] { return f.text({"b"}).batch(kEverything); }},
      {"batch_of_batches",
       [&f] { return f.records(kFiles, {"id"}).batch(2, {.drop_remainder = true}).batch(3); }},
      {"batch_of_vectors",
       [&f] {
         return f.records({"a"}, {"weights", "word"}).batch(4);
       }},
      {"padded_batch", [=] { return tags().padded_batch(4); }},
      {"padded_batch_to_sizes",
       [=] {
         return tags().padded_batch(4, {.sizes = {{6}, {}}, .value = -1});
       }},
      {"padded_batch_drop_remainder",
       [=] { return tags().padded_batch(4, {.drop_remainder = true}); }},
  };
}

Pipelines parts(const Files& f) {
  return {
      {"shard", [&f] { return f.records(kFiles).shard(3, 1); }},
      {"shard_of_batches", [&f] { return f.csv(kFiles).batch(2).shard(2, 1); }},
      {"skip_take",
       [&f] {
         const int64_t count = records_of(f);
         return f.records(kFiles).skip(count / 2).take(count);
       }},
      {"skip_past_the_end", [&f] { return f.csv({"a"}).skip(kEverything); }},
      {"take_repeat_skip", [&f] { return f.text({"a"}).take(3).repeat(4).skip(5); }},
      {"repeat_take",
       [&f] {
         return f.csv({"a", "b"}).repeat().take(2 * records_of(f));
       }},
      {"repeat_batch", [&f] { return f.records({"b"}).repeat(3).batch(4); }},
      {"batch_repeat", [&f] { return f.records({"b"}).batch(2).repeat(2); }},
      {"filter", [&f] { return f.records(kFiles).filter(even); }},
      {"filter_batch", [&f] { return f.csv(kFiles).filter(even).batch(4); }},
      {"filter_shard_repeat",
       [&f] {
         return f.records({"a", "b"}).filter(even).shard(2, 0).repeat(2);
       }},
      {"zip",
       [&f] {
         return Dataset::zip({f.records({"a", "c"}), Dataset::range(5, 5 + records_of(f))});
       }},
      {"zip_of_formats",
       [&f] {
         return Dataset::zip({f.text({"a", "c"}), f.csv({"a", "c"})}).batch(4);
       }},
      {"concatenate",
       [&f] { return f.records({"c"}).concatenate(f.records({"b"})).concatenate(f.csv({"a"})); }},
      {"concatenate_batch_repeat",
       [&f] { return f.csv({"b"}).concatenate(f.csv({"a"})).batch(4).repeat(2); }},
  };
}

Pipelines interleaved(const Files& f) {
  const auto ids = [&f](const Names& names, int64_t cycle, int64_t block_length) {
    return f.records(names, {"id"}).interleave(cycle, {.block_length = block_length});
  };
  return {
      {"interleave_2_1", [=] { return ids(kFiles, 2, 1); }},
      {"interleave_2_2", [=] { return ids(kFiles, 2, 2); }},
      {"interleave_3_1",
       [=] {
         return ids({"empty", "b", "c", "a"}, 3, 1);
       }},
      {"interleave_3_2",
       [=] {
         return ids({"b", "a", "empty", "c", "a"}, 3, 2);
       }},
      {"interleave_more_than_files",
       [=] {
         return ids({"a", "b", "c"}, 9, 3);
       }},
      {"interleave_csv_batch",
       [&f] {
         return f.csv({"empty", "a", "b", "c"}).interleave(3).batch(4);
       }},
      {"interleave_skip_repeat_shard",
       [=] { return ids(kFiles, 2, 2).skip(3).repeat(2).shard(2, 1); }},
      {"interleave_shuffle", [=] { return ids(kFiles, 2, 1).shuffle(5, {.seed = 1}); }},
  };
}

Pipelines functions_and_buffers(const Files& f) {
  return {
      {"map", [&f] { return f.records({"a"}).map(scaled); }},
      {"map_in_parallel", [&f] { return f.records(kFiles).map(scaled, {.threads = 4}); }},
      {"map_batches",
       [&f] {
         return f.csv({"a", "b"}).batch(3, {.drop_remainder = true}).map(scaled);
       }},
      {"map_filter_batch", [&f] { return f.csv(kFiles).map(scaled).filter(even).batch(3); }},
      {"cache_repeat",
       [&f] {
         return f.csv({"a", "b"}).cache().repeat(3);
       }},
      {"filter_cache_repeat_batch",
       [&f] { return f.records(kFiles).filter(even).cache().repeat(2).batch(4); }},
      {"map_batch_prefetch", [&f] { return f.records(kFiles).map(scaled).batch(4).prefetch(2); }},
      {"prefetch_take", [&f] { return f.text({"c"}).prefetch(4).take(records_of(f)); }},
      {"shuffle", [&f] { return f.records(kFiles).shuffle(3, {.seed = 1}); }},
      {"shuffle_of_all", [&f] { return f.csv(kFiles).shuffle(kEverything, {.seed = 1}); }},
      {"shuffle_repeat",
       [&f] {
         return f.records({"a", "b"}).shuffle(4, {.seed = 1}).repeat(3);
       }},
  };
}

Pipelines parquet(const Files& f) {
  return {
      {"parquet",
       [&f] {
         return f.parquet({"a"}, {"id", "score", "small", "flag"});
       }},
      {"parquet_nulls",
       [&f] {
         return f.parquet({"c"}, {"id", "maybe", "rate"});
       }},
      {"parquet_words",
       [&f] {
         return f.parquet({"a", "b"}, {"word", "id", "plain"});
       }},
      {"parquet_vectors",
       [&f] {
         return f.parquet({"b", "c"}, {"vector", "fixed"});
       }},
      {"parquet_all_numbers", [&f] { return Dataset::parquet(f.path("numbers.parquet")); }},
      {"parquet_files", [&f] { return f.parquet(kFiles); }},
      {"parquet_batch",
       [&f] {
         return f.parquet(kFiles, {"id", "word", "fixed"}).batch(4);
       }},
      {"parquet_padded_batch",
       [&f] {
         return f.parquet({"a", "b"}, {"tags", "id"}).padded_batch(4);
       }},
      {"parquet_skip_shard", [&f] { return f.parquet(kFiles).skip(7).shard(2, 1); }},
      {"parquet_repeat_batch",
       [&f] {
         return f.parquet({"a", "b"}).repeat(2).batch(5);
       }},
      {"parquet_shuffle",
       [&f] {
         return f.parquet({"a", "b", "c"}).shuffle(4, {.seed = 1});
       }},
  };
}

json run_pipeline(const Pipelines& pipelines, const std::string& name) try {
  return {{"elements", elements_json(pipelines.at(name)())}};
} catch (const std::out_of_range&) {
  return {{"error", "pipelines_program has no pipeline of this name"}};
} catch (const std::exception& error) {
  return {{"error", error.what()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: pipelines_program FOLDER PIPELINE...\n", stderr);
    return 2;
  }
  const Files files(argv[1]);
  Pipelines pipelines;
  for (Pipelines group : {sources(files), batches(files), parts(files), interleaved(files),
                          functions_and_buffers(files), parquet(files)}) {
    pipelines.merge(group);
  }
  json results;
  for (int i = 2; i < argc; ++i) results[argv[i]] = run_pipeline(pipelines, argv[i]);
  std::puts(results.dump().c_str());
  return 0;
}
