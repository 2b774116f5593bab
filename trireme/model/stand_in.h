#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torch::nn {
class Module;
}

// A replica may get the part of a batch that has no examples. Some layers and losses cannot compute
// on it: pooling rejects it, attention cannot infer a shape, and a mean is not a number. Then a few
// rows stand in for the examples, and count as none. So every replica and worker has a gradient for
// the same variables, and makes the same calls.
namespace trireme::internal {

// Returns rows that stand in for the examples of `empty`, the tensors of a batch without rows:
// those of `filled`, another batch with the same axes, or zeros if `filled` is empty. There are
// two, since batch norm needs more than one.
std::vector<at::Tensor> stand_in_rows(const std::vector<at::Tensor>& empty,
                                      const std::vector<at::Tensor>& filled);

// Keeps the statistics of the batch norms of a net, so that rows that stand in for examples leave
// them unchanged. Not thread-safe.
class KeptStatistics {
 public:
  // Copies the statistics. `net` may be null, and need not outlive it.
  explicit KeptStatistics(const torch::nn::Module* net);

  // Sets the statistics of the layers that were called since back. Must be called after the
  // backward pass, which uses the statistics. Counts of batches, which are integers, stay: they are
  // the same on all workers.
  void restore() const;

 private:
  struct Layer {
    at::Tensor count;  // number of batches
    int64_t version;   // version of `count` when the statistics were copied
    std::vector<at::Tensor> statistics, before;
  };
  std::vector<Layer> layers_;
};

}  // namespace trireme::internal
