#include "trireme/model/stand_in.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <utility>

namespace trireme::internal {
namespace {

using at::Tensor;

constexpr int64_t kStandInRows = 2;

Tensor first_rows(const Tensor& tensor) {
  if (tensor.size(0) >= kStandInRows) return tensor.narrow(0, 0, kStandInRows);
  return at::cat(std::vector<Tensor>(kStandInRows, tensor));
}

Tensor zero_rows(const Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = kStandInRows;
  return at::zeros(sizes, tensor.options());
}

}  // namespace

std::vector<Tensor> stand_in_rows(const std::vector<Tensor>& empty,
                                  const std::vector<Tensor>& filled) {
  std::vector<Tensor> rows;
  for (size_t i = 0; i < empty.size(); ++i) {
    const bool has_rows = empty[i].dim() > 0 && empty[i].layout() == at::kStrided;
    if (!has_rows) {
      rows.push_back(empty[i]);
    } else if (i < filled.size() && filled[i].dim() > 0 && filled[i].size(0) > 0) {
      rows.push_back(first_rows(filled[i]));
    } else {
      rows.push_back(zero_rows(empty[i]));
    }
  }
  return rows;
}

// A batch norm is recognised by its buffers. Its kernel writes the statistics without a new version
// of their tensors, but the layer counts its batches with an operator.
KeptStatistics::KeptStatistics(const torch::nn::Module* net) {
  if (net == nullptr) return;
  const at::NoGradGuard no_gradients;
  for (const auto& module : net->modules()) {
    const auto buffers = module->named_buffers(/*recurse=*/false);
    const Tensor* count = buffers.find("num_batches_tracked");
    if (count == nullptr || !count->defined() || !module->is_training()) continue;
    Layer layer{*count, count->_version(), {}, {}};
    for (const auto& buffer : buffers) {
      if (!buffer.value().defined() || !buffer.value().is_floating_point()) continue;
      layer.statistics.push_back(buffer.value());
      layer.before.push_back(buffer.value().clone());
    }
    layers_.push_back(std::move(layer));
  }
}

void KeptStatistics::restore() const {
  const at::NoGradGuard no_gradients;
  for (const Layer& layer : layers_) {
    if (layer.count._version() == layer.version) continue;
    for (size_t i = 0; i < layer.statistics.size(); ++i) layer.statistics[i].copy_(layer.before[i]);
  }
}

}  // namespace trireme::internal
