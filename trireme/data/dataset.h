#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/data/element.h"
#include "trireme/data/file_options.h"
#include "trireme/data/input_context.h"
#include "trireme/data/iterator.h"
#include "trireme/function/function.h"
#include "trireme/graph/graph.h"

namespace trireme {
namespace internal {
struct DatasetStep;
}

// Options of Dataset::batch().
struct BatchOptions {
  // True to drop the last batch if it has fewer elements than the others.
  bool drop_remainder = false;
};

// Options of Dataset::shuffle().
struct ShuffleOptions {
  // Seed of the order. Without it, the seed of tr::set_seed() at the time of the call is used.
  std::optional<uint64_t> seed;
};

// Options of Dataset::map().
struct MapOptions {
  // Number of elements that are mapped at the same time. Their order stays the same.
  int threads = 1;
};

// Options of Dataset::padded_batch().
struct PaddedBatchOptions {
  // Shape that each tensor of the elements is filled up to; -1 for the largest size in the batch.
  // Empty to take the largest sizes in the batch. An element that is larger is an error.
  std::vector<std::vector<int64_t>> sizes = {};
  // Number that fills up.
  double value = 0;
  // True to drop the last batch if it has fewer elements than the others.
  bool drop_remainder = false;
};

// Options of Dataset::interleave().
struct InterleaveOptions {
  // Number of elements that are taken from each file in turn.
  int64_t block_length = 1;
};

// Options of Dataset::iterator().
struct IteratorOptions {
  // Seed of the elements. Iterators over one dataset with the same seed give the same elements in
  // the same order. Another seed gives another order of the same data, and other random numbers in
  // maps.
  uint64_t seed = 0;
};

// A source of elements and a list of steps that are applied to them. An element is a list of
// tensors. A dataset is plain data: it is made in the program, and iterators over it may be made in
// the program or on workers. Immutable: every step returns a new dataset. Copies are cheap.
// Thread-safe.
//
//   tr::Dataset batches = tr::Dataset::from_tensors({x, y}).shuffle(1000).repeat().batch(32);
//
// A step throws Error, which names the step, if its arguments are not valid.
class Dataset {
 public:
  // Stands for an endless number of repetitions or elements.
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  // Stands for a number of elements that is not known without reading them.
  static constexpr int64_t kUnknown = -1;

  // Gives the numbers from 0 up to but not including `end`, as int64 scalars.
  static Dataset range(int64_t end);
  // Gives the numbers from `begin` up to but not including `end`, as int64 scalars. A negative
  // `step` counts down.
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  // Gives the rows of the tensors along axis 0: element i has row i of each tensor. All tensors
  // must have the same number of rows. Contiguous tensors are not copied, and elements may be views
  // of them: write neither to the tensors nor to the elements.
  static Dataset from_tensors(std::vector<at::Tensor> tensors);

  // Gives the lines of text files, without their ends, as bytes (text_column()). `files` is a path,
  // a pattern as "logs/*.txt", or a list of paths. A pattern is resolved by this call, in the order
  // of the names; the files themselves are read where the iterator is. So is it for all sources of
  // files.
  static Dataset text_lines(const FileNames& files, const TextOptions& options = {});
  // Gives the lines of CSV files.
  static Dataset csv(const FileNames& files, const CsvOptions& options = {});
  // Gives the records of TFRecord files, each of which is a tf.Example.
  static Dataset tf_records(const FileNames& files, const TfRecordOptions& options);
  // Gives the rows of Parquet files. Throws Error with UNIMPLEMENTED if Trireme was built without
  // Arrow.
  static Dataset parquet(const FileNames& files, const ParquetOptions& options = {});
  // Gives the rows, along axis 0, of tensors in safetensors files.
  static Dataset safetensors(const FileNames& files, const SafetensorsOptions& options = {});
  // Joins the elements of datasets: element i has the tensors of element i of each. Ends with the
  // shortest.
  static Dataset zip(const std::vector<Dataset>& datasets);

  // Stacks every `size` consecutive elements into one. The last batch may be smaller.
  Dataset batch(int64_t size, const BatchOptions& options = {}) const;
  // Shuffles elements: keeps a buffer of `buffer` elements full and draws from it at random. A
  // buffer as large as the dataset gives every order with equal probability. With a smaller one an
  // element comes at most `buffer - 1` places too early. Each repetition has another order.
  Dataset shuffle(int64_t buffer, const ShuffleOptions& options = {}) const;
  // Repeats the elements `count` times, or endlessly.
  Dataset repeat(int64_t count = kForever) const;
  // Gives the first `count` elements, or all elements if there are fewer.
  Dataset take(int64_t count) const;
  // Gives all elements but the first `count`.
  Dataset skip(int64_t count) const;
  // Replaces each element with the result of a function (tr::function), which takes one argument
  // for each tensor of the element and returns a tensor, or a pair, tuple or vector of tensors:
  //
  //   dataset.map([](const torch::Tensor& x, const torch::Tensor& y) {
  //     return std::make_pair(x / 255, y);
  //   });
  //
  // The function is captured by this call, once for each shape that elements may have, so it
  // follows the rules of captured functions. It must not use variables.
  template <typename R, typename... Args>
  Dataset map(const Function<R(Args...)>& function, const MapOptions& options = {}) const;
  // Does the same for a lambda or another callable, from which it makes a captured function.
  template <typename F>
  Dataset map(F function, const MapOptions& options = {}) const;
  // Keeps the elements for which a function returns a tensor that is true. The function is as that
  // of map().
  template <typename F>
  Dataset filter(F function) const;

  // Stacks every `size` consecutive elements whose shapes may differ, filled up at their ends.
  Dataset padded_batch(int64_t size, const PaddedBatchOptions& options = {}) const;
  // Keeps every `count`-th element, beginning with element `index`.
  Dataset shard(int64_t count, int64_t index) const;
  // Keeps the elements of one worker.
  Dataset shard(const InputContext& context) const;
  // Marks the place where Shard::kHint keeps the elements of each worker. Keeps all until then.
  Dataset shard(ShardHint) const;
  // Gives the elements of this dataset, and then those of another one of the same types and shapes.
  Dataset concatenate(const Dataset& other) const;
  // Reads `cycle` files of the source at the same time, and takes elements from each in turn.
  // Directly after a source of files.
  Dataset interleave(int64_t cycle, const InterleaveOptions& options = {}) const;
  // Keeps the elements in memory while they are read for the first time, so that further
  // repetitions need not make them again.
  Dataset cache() const;
  // Makes up to `count` elements in advance, on another thread.
  Dataset prefetch(int64_t count) const;

  // Returns an iterator that starts at the first element.
  Iterator iterator(const IteratorOptions& options = {}) const;

  // Returns the dtypes and shapes that elements may have: one specification in most cases, two if
  // the last batch is smaller.
  const std::vector<ElementSpec>& element_specs() const;
  // Returns the first of element_specs().
  const ElementSpec& element_spec() const { return element_specs()[0]; }
  // Returns the number of elements; kForever if they never end, kUnknown if only reading the files
  // would show it.
  int64_t size() const;
  // Returns the steps in readable form, as "range(1, 6).batch(2)".
  std::string describe() const;

 private:
  friend struct internal::Access<Dataset>;
  // Makes a dataset from the last of its steps.
  explicit Dataset(std::shared_ptr<const internal::DatasetStep> last);
  // Captures a function for an element.
  using GraphFunction = std::function<Graph(const std::vector<at::Tensor>&)>;
  // Add a map or a filter of elements with `tensors` tensors.
  Dataset map_graphs(size_t tensors, const GraphFunction& graph, const MapOptions& options) const;
  Dataset filter_graphs(size_t tensors, const GraphFunction& graph) const;

  std::shared_ptr<const internal::DatasetStep> last_;
};

}  // namespace trireme

#include "trireme/data/dataset_inl.h"
