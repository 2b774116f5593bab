// Guards of kernels that trust the indices and shapes of single tensors, and the table from which
// find_guard() serves all guards. guards_layers.cc has the guards of whole layers and optimizers,
// guards_numbers.cc has the guards against dangerous numbers.
//
// A guard repeats the shape arithmetic of its kernel: it computes from some arguments the shape or
// the range that the others must have, and compares. A comment above each guard lists the
// operator's arguments in the order of its schema, because guards get them by position. Guards look
// at the contents of a tensor only if the kernel uses them as indices or positions, since that
// reads the tensor once more in every step, and only after has_trusted_contents().
#include "trireme/graph/guards.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "trireme/graph/guard_checks.h"
#include "trireme/graph/guards_layers.h"
#include "trireme/graph/guards_numbers.h"
#include "trireme/graph/trusted_contents.h"

namespace trireme::internal {
namespace {

// Checks (grad_output, self) of an operator over the last `spatial` dimensions, which come after
// the channels and an optional batch.
void guard_pooling(const at::Tensor& gradient, const at::Tensor& self, int64_t spatial) {
  const int64_t leading = self.dim() - spatial;
  require(gradient.dim() == self.dim() && (leading == 1 || leading == 2),
          "'grad_output' and 'self' must have the same number of dimensions: the spatial ones, the "
          "channels and optionally a batch");
  for (int64_t i = 0; i < leading; ++i) {
    require(gradient.size(i) == self.size(i),
            "'grad_output' and 'self' must agree in batch and channels");
  }
  // As in eager code, there may be no examples. No kernel divides by their number.
  const int64_t batch = leading == 2 ? 1 : 0;
  const bool any_empty = std::ranges::count(self.sizes().slice(batch), 0) > 0;
  require(!any_empty, "'self' must not be empty, except for its batch");
}

template <int kSpatial>
void average_pooling(Arguments arguments) {
  guard_pooling(dense(arguments[0], "grad_output"), dense(arguments[1], "self"), kSpatial);
}

// (grad_output, self, ..., indices, ...): `indices` are positions in a plane of `self`.
template <int kSpatial, int kIndices>
void max_pooling(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad_output"),
                   &self = dense(arguments[1], "self"),
                   &indices = dense(arguments[kIndices], "indices");
  guard_pooling(gradient, self, kSpatial);
  require_sizes(indices, gradient.sizes().vec(), "indices");
  int64_t plane = 1;
  for (int i = 1; i <= kSpatial; ++i) plane = product(plane, self.size(-i));
  require_range(indices, 0, plane, "indices");
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight)
void nll_loss(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad_output"),
                   &self = dense(arguments[1], "self"), &target = dense(arguments[2], "target");
  require(self.dim() == 1 || self.dim() == 2 || self.dim() == 4, "'self' has a wrong shape");
  const int64_t classes = self.size(self.dim() == 1 ? 0 : 1);
  require(classes > 0, "'self' must have at least one class");
  require_numel(target, self.numel() / classes, "target");
  const bool none = arguments[4].toInt() == 0;
  require_numel(gradient, none ? target.numel() : 1, "grad_output");
  require_numel(dense(arguments[6], "total_weight"), 1, "total_weight");
  if (is_given(arguments[3])) require_numel(dense(arguments[3], "weight"), classes, "weight");
  if (has_trusted_contents(target)) return;
  // The kernel compares as 64-bit integers. A comparison in a narrower dtype could truncate
  // 'ignore_index' to the number of another class.
  const at::Tensor wide = target.to(at::kLong);
  require_range(at::where(wide.ne(arguments[5].toInt()), wide, at::zeros_like(wide)), 0, classes,
                "target");
}

// (self, target, ...)
void binary_cross_entropy(Arguments arguments) {
  require_sizes(dense(arguments[1], "target"), dense(arguments[0], "self").sizes().vec(), "target");
}

// (grad_output, self, target, weight, reduction)
void binary_cross_entropy_backward(Arguments arguments) {
  binary_cross_entropy(arguments.slice(1));
  const at::Tensor& self = arguments[1].toTensor();
  const bool none = arguments[4].toInt() == 0;
  require_numel(dense(arguments[0], "grad_output"), none ? self.numel() : 1, "grad_output");
}

// (grad_output, self, target, reduction, beta): for integers, the kernel converts beta to an
// integer, which turns a beta below 1 into 0, and divides by it.
void smooth_loss_backward(Arguments arguments) {
  require(dense(arguments[1], "self").is_floating_point(),
          "'self' must hold floating-point numbers");
}

// (grad_output, self, target, p, margin, weight, reduction)
void multi_margin_loss(Arguments arguments) {
  const at::Tensor &self = dense(arguments[1], "self"), &target = dense(arguments[2], "target");
  require(self.dim() <= 2 && self.numel() > 0,
          "'self' must have at most two dimensions and must not be empty");
  const int64_t rows = self.dim() == 2 ? self.size(0) : 1, classes = self.numel() / rows;
  require_numel(target, rows, "target");
  require_range(target, 0, classes, "target");
  if (is_given(arguments[5])) require_numel(dense(arguments[5], "weight"), classes, "weight");
  const bool none = arguments[6].toInt() == 0;
  require_numel(dense(arguments[0], "grad_output"), none ? rows : 1, "grad_output");
}

// (self, size, stride): LibTorch makes this view without any check. It must have as many elements
// as `self` and stay in its storage.
void reshape_alias(Arguments arguments) {
  const at::Tensor& self = dense(arguments[0], "self");
  const Sizes sizes = arguments[1].toIntVector(), strides = arguments[2].toIntVector();
  require(sizes.size() == strides.size(), "'size' and 'stride' must have the same length");
  // Number of elements after the first one that the view may still reach.
  int64_t room = static_cast<int64_t>(self.storage().nbytes() / self.dtype().itemsize()) -
                 self.storage_offset() - 1;
  int64_t numel = std::ranges::count(sizes, 0) > 0 ? 0 : 1;
  for (int64_t size : sizes) {
    require(size >= 0, "'size' must not be negative");
    numel = product(numel, size);
  }
  for (int64_t stride : strides) require(stride >= 0, "'stride' must not be negative");
  require(numel == self.numel(), "'size' must have as many elements as 'self'");
  for (size_t i = 0; i < sizes.size() && numel > 0; ++i) {
    if (sizes[i] <= 1) continue;
    require(strides[i] >= 0 && strides[i] <= room / (sizes[i] - 1),
            "'stride' must stay in the storage of 'self'");
    room -= strides[i] * (sizes[i] - 1);
  }
}

// Checks sizes and steps of windows, which kernels multiply without checking for overflow.
void guard_windows(Arguments lists) {
  constexpr int64_t kMost = 1 << 20;
  for (const c10::IValue& list : lists) {
    for (int64_t number : list.toIntVector()) {
      require(number >= 0 && number <= kMost, "a size, step or padding is out of range");
    }
  }
}

// (self, kernel_size, dilation, padding, stride)
void columns(Arguments arguments) {
  guard_windows(arguments.slice(1, 4));
}

// (self, output_size, kernel_size, dilation, padding, stride)
void image_of_columns(Arguments arguments) {
  guard_windows(arguments.slice(1, 5));
}

// Checks all floating-point arguments, which are scales. Kernels divide by them and convert the
// quotients to indices.
void scales(Arguments arguments) {
  constexpr double kMost = 1 << 20;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isDouble()) continue;
    require(argument.toDouble() >= 1 / kMost && argument.toDouble() <= kMost,
            "a scale is out of range");
  }
}

// Checks that given scales fit the sizes. A kernel with antialiasing computes its windows from the
// scale and does not compare them with the sizes.
void guard_scales(at::IntArrayRef input, at::IntArrayRef output, Arguments given) {
  scales(given);
  require(input.size() == 4 && output.size() == 2,
          "the input must have four dimensions and 'output_size' two");
  for (size_t i = 0; i < 2; ++i) {
    require(input[2 + i] > 0 && output[i] > 0, "an image must not be empty");
    if (given[i].isNone()) continue;
    const double scaled = static_cast<double>(input[2 + i]) * given[i].toDouble();
    require(std::abs(scaled - static_cast<double>(output[i])) <= 1,
            "a scale does not match the size of the image and 'output_size'");
  }
}

// (self, output_size, align_corners, scales_h, scales_w)
void antialiased(Arguments arguments) {
  guard_scales(dense(arguments[0], "self").sizes(), arguments[1].toIntVector(),
               arguments.slice(3, 2));
}

// (grad_output, output_size, input_size, align_corners, scales_h, scales_w)
void antialiased_backward(Arguments arguments) {
  guard_scales(arguments[2].toIntVector(), arguments[1].toIntVector(), arguments.slice(4, 2));
}

// (self, size, ...): a tensor must not grow. The added memory would show what was there before, and
// the old block may still be in flight to another task.
void resize(Arguments arguments) {
  const at::Tensor& self = dense(arguments[0], "self");
  Sizes sizes;
  if (arguments[1].isTensor()) {
    sizes = dense(arguments[1], "the_template").sizes().vec();
  } else {
    sizes = arguments[1].toIntVector();
  }
  int64_t room = static_cast<int64_t>(self.storage().nbytes() / self.dtype().itemsize()) -
                 self.storage_offset();
  for (int64_t size : sizes) require(size >= 0, "'size' must not be negative");
  for (int64_t size : sizes) {
    if (size == 0) return;
    room /= size;
  }
  require(room > 0, "a tensor in a graph cannot grow; make a larger one and copy");
}

// (grad_output, output, ...)
void softmax(Arguments arguments) {
  require_sizes(dense(arguments[1], "output"), dense(arguments[0], "grad_output").sizes().vec(),
                "output");
}

// (grad_output, self, ...) of an elementwise function.
void elementwise(Arguments arguments) {
  require_sizes(dense(arguments[0], "grad_output"), dense(arguments[1], "self").sizes().vec(),
                "grad_output");
}

// (grad_output, self, padding): 'padding' has two numbers per dimension, the last dimension first.
template <int kSpatial>
void padding(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad_output"),
                   &self = dense(arguments[1], "self");
  guard_pooling(gradient, self, kSpatial);
  const Sizes pads = arguments[2].toIntVector();
  require(pads.size() == 2 * kSpatial, "'padding' must have two numbers per dimension");
  for (int64_t pad : pads)
    require(pad > -(1 << 30) && pad < (1 << 30), "'padding' is out of range");
  for (int64_t i = 0; i < kSpatial; ++i) {
    require(gradient.size(-1 - i) == self.size(-1 - i) + pads[2 * i] + pads[2 * i + 1],
            "'grad_output' must be as large as 'self' with its padding");
  }
}

// Checks the modes. A kernel leaves its result unwritten if it does not know its mode.
void guard_sampling(int64_t interpolation, int64_t padding_mode, int64_t spatial) {
  require(interpolation >= 0 && interpolation <= (spatial == 2 ? 2 : 1) && padding_mode >= 0 &&
              padding_mode <= 2,
          "'interpolation_mode' or 'padding_mode' is unknown");
}

// (input, grid, interpolation_mode, padding_mode, align_corners)
template <int kSpatial>
void grid_sampler_forward(Arguments arguments) {
  guard_sampling(arguments[2].toInt(), arguments[3].toInt(), kSpatial);
}

// (grad_output, input, grid, interpolation_mode, padding_mode, ...)
template <int kSpatial>
void grid_sampler(Arguments arguments) {
  guard_sampling(arguments[3].toInt(), arguments[4].toInt(), kSpatial);
  const at::Tensor &gradient = dense(arguments[0], "grad_output"),
                   &input = dense(arguments[1], "input"), &grid = dense(arguments[2], "grid");
  require(input.dim() >= 3 && grid.dim() == input.dim() && input.numel() > 0,
          "'input' and 'grid' must have the same number of dimensions, and 'input' must not be "
          "empty");
  Sizes sizes = {input.size(0), input.size(1)}, places = {input.size(0)};
  for (int64_t i = 1; i < grid.dim() - 1; ++i) sizes.push_back(grid.size(i));
  places.insert(places.end(), sizes.begin() + 2, sizes.end());
  places.push_back(input.dim() - 2);
  require_sizes(grid, places, "grid");
  require_sizes(gradient, sizes, "grad_output");
  // With zero padding, a NaN counts as outside of the image. With the other paddings the kernel
  // clips positions to the image, which leaves a NaN as it is, and uses it as an index.
  const bool clips = arguments[4].toInt() != 0 && !has_trusted_contents(grid);
  require(!clips || grid.isfinite().all().item<bool>(), "'grid' must hold finite numbers");
}

// (grad_in, input_sizes, dim, size, step)
void unfold(Arguments arguments) {
  Sizes sizes = arguments[1].toIntVector();
  int64_t dim = arguments[2].toInt();
  const int64_t rank = static_cast<int64_t>(sizes.size()), size = arguments[3].toInt(),
                step = arguments[4].toInt();
  require(rank > 0 && dim >= -rank && dim < rank, "'dim' must be a dimension of 'input_sizes'");
  if (dim < 0) dim += rank;
  require(size >= 0 && step > 0 && size <= sizes[dim], "'size' and 'step' must fit 'input_sizes'");
  sizes[dim] = (sizes[dim] - size) / step + 1;
  sizes.push_back(size);
  require_sizes(dense(arguments[0], "grad_in"), sizes, "grad_in");
}

// (grad_output, indices, num_weights, ...)
void embedding(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad_output"),
                   &indices = dense(arguments[1], "indices");
  require_range(indices, 0, arguments[2].toInt(), "indices");
  require(gradient.dim() >= 1, "'grad_output' must have at least one dimension");
  require_numel(gradient, product(indices.numel(), gradient.size(-1)), "grad_output");
}

// Checks that `offsets` divide `indices` into bags: offset i is where bag i begins.
void guard_offsets(const at::Tensor& offsets, const at::Tensor& indices) {
  require(offsets.dim() == 1 && offsets.numel() > 0,
          "'offsets' must have one dimension and must not be empty");
  require_range(offsets, 0, indices.numel() + 1, "offsets");
  if (has_trusted_contents(offsets)) return;
  const at::Tensor wide = offsets.to(at::kCPU, at::kLong).contiguous();
  const int64_t* begin = wide.const_data_ptr<int64_t>();
  require(begin[0] == 0 && std::is_sorted(begin, begin + wide.numel()),
          "'offsets' must begin with 0 and must not decrease");
}

// (weight, indices, offsets, scale, mode, sparse, per_sample_weights, include_last_offset, padding)
void embedding_bag(Arguments arguments) {
  const at::Tensor &weight = dense(arguments[0], "weight"),
                   &indices = dense(arguments[1], "indices"),
                   &offsets = dense(arguments[2], "offsets");
  require(weight.dim() == 2 && indices.dim() == 1,
          "'weight' must have two dimensions and 'indices' one");
  require_range(indices, 0, weight.size(0), "indices");
  guard_offsets(offsets, indices);
  require(!arguments[7].toBool() || offsets.numel() > 1,
          "'offsets' must have two entries or more if 'include_last_offset' is true");
  require(arguments[8].toInt() < weight.size(0), "'padding_idx' must be a row of 'weight'");
  if (is_given(arguments[6])) {
    require_sizes(dense(arguments[6], "per_sample_weights"), {indices.numel()},
                  "per_sample_weights");
  }
}

// Checks the arguments that the backward operators of embedding_bag share. `bags` is the bag of
// each index, and `gradient` has one row per bag.
void guard_bags(const at::Tensor& gradient, const at::Tensor& indices, const at::Tensor& offsets,
                const at::Tensor& bags, int64_t rows) {
  require(gradient.dim() == 2 && indices.dim() == 1,
          "'grad' must have two dimensions and 'indices' one");
  require_range(indices, 0, rows, "indices");
  guard_offsets(offsets, indices);
  // If 'offset2bag' is empty, the kernel computes it from the offsets.
  require(bags.numel() == 0 || bags.numel() == indices.numel(),
          "'offset2bag' must have an entry for each index");
  require_range(bags, 0, gradient.size(0), "offset2bag");
  require(offsets.numel() <= gradient.size(0) + 1, "'offsets' must not have more bags than 'grad'");
  require(bags.numel() > 0 || offsets.numel() <= gradient.size(0) || indices.numel() == 0 ||
              has_trusted_contents(offsets) || offsets[-1].item<int64_t>() == indices.numel(),
          "'offsets' must not have more bags than 'grad'");
}

// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale, mode, sparse,
// per_sample_weights, padding)
void embedding_bag_backward(Arguments arguments) {
  constexpr int64_t kMean = 1, kMax = 2;
  const at::Tensor &gradient = dense(arguments[0], "grad"),
                   &indices = dense(arguments[1], "indices");
  const int64_t rows = arguments[6].toInt(), mode = arguments[8].toInt();
  guard_bags(gradient, indices, dense(arguments[2], "offsets"), dense(arguments[3], "offset2bag"),
             rows);
  const at::Tensor& sizes = dense(arguments[4], "bag_size");
  if (mode == kMean || sizes.numel() > 0) require_numel(sizes, gradient.size(0), "bag_size");
  if (mode == kMax) {
    const at::Tensor& most = dense(arguments[5], "maximum_indices");
    require_sizes(most, gradient.sizes().vec(), "maximum_indices");
    require_range(most, -1, rows, "maximum_indices");
  }
  if (is_given(arguments[10])) {
    require_sizes(dense(arguments[10], "per_sample_weights"), {indices.numel()},
                  "per_sample_weights");
  }
}

// (grad, weight, indices, offsets, offset2bag, mode, padding)
void embedding_bag_weights_backward(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad"), &weight = dense(arguments[1], "weight");
  require(weight.dim() == 2 && gradient.dim() == 2 && gradient.size(1) == weight.size(1),
          "'grad' and 'weight' must have two dimensions and rows of the same width");
  guard_bags(gradient, dense(arguments[2], "indices"), dense(arguments[3], "offsets"),
             dense(arguments[4], "offset2bag"), weight.size(0));
}

// Returns the guards of this file, by operator.
const std::unordered_map<std::string, Guard>& element_guards() {
  static const auto* all = new std::unordered_map<std::string, Guard>{
      {"aten::avg_pool2d_backward", average_pooling<2>},
      {"aten::avg_pool3d_backward", average_pooling<3>},
      {"aten::_adaptive_avg_pool2d_backward", average_pooling<2>},
      {"aten::_adaptive_avg_pool3d_backward", average_pooling<3>},
      {"aten::max_pool2d_with_indices_backward", max_pooling<2, 7>},
      {"aten::max_pool3d_with_indices_backward", max_pooling<3, 7>},
      {"aten::adaptive_max_pool2d_backward", max_pooling<2, 2>},
      {"aten::adaptive_max_pool3d_backward", max_pooling<3, 2>},
      {"aten::_reshape_alias", reshape_alias},
      {"aten::im2col", columns},
      {"aten::col2im", image_of_columns},
      {"aten::_upsample_bilinear2d_aa", antialiased},
      {"aten::_upsample_bicubic2d_aa", antialiased},
      {"aten::_upsample_lanczos2d_aa", antialiased},
      {"aten::_upsample_bilinear2d_aa_backward", antialiased_backward},
      {"aten::_upsample_bicubic2d_aa_backward", antialiased_backward},
      {"aten::_upsample_lanczos2d_aa_backward", antialiased_backward},
      {"aten::upsample_linear1d", scales},
      {"aten::upsample_bilinear2d", scales},
      {"aten::upsample_bicubic2d", scales},
      {"aten::upsample_trilinear3d", scales},
      {"aten::upsample_nearest1d", scales},
      {"aten::upsample_nearest2d", scales},
      {"aten::upsample_nearest3d", scales},
      {"aten::_upsample_nearest_exact1d", scales},
      {"aten::_upsample_nearest_exact2d", scales},
      {"aten::_upsample_nearest_exact3d", scales},
      {"aten::upsample_linear1d_backward", scales},
      {"aten::upsample_bilinear2d_backward", scales},
      {"aten::upsample_bicubic2d_backward", scales},
      {"aten::upsample_trilinear3d_backward", scales},
      {"aten::upsample_nearest1d_backward", scales},
      {"aten::upsample_nearest2d_backward", scales},
      {"aten::upsample_nearest3d_backward", scales},
      {"aten::_upsample_nearest_exact1d_backward", scales},
      {"aten::_upsample_nearest_exact2d_backward", scales},
      {"aten::_upsample_nearest_exact3d_backward", scales},
      {"aten::resize_", resize},
      {"aten::resize_as_", resize},
      {"aten::gelu_backward", elementwise},
      {"aten::_softmax_backward_data", softmax},
      {"aten::_log_softmax_backward_data", softmax},
      {"aten::reflection_pad1d_backward", padding<1>},
      {"aten::reflection_pad2d_backward", padding<2>},
      {"aten::reflection_pad3d_backward", padding<3>},
      {"aten::replication_pad1d_backward", padding<1>},
      {"aten::replication_pad2d_backward", padding<2>},
      {"aten::replication_pad3d_backward", padding<3>},
      {"aten::grid_sampler_2d", grid_sampler_forward<2>},
      {"aten::grid_sampler_3d", grid_sampler_forward<3>},
      {"aten::grid_sampler_2d_backward", grid_sampler<2>},
      {"aten::grid_sampler_3d_backward", grid_sampler<3>},
      {"aten::unfold_backward", unfold},
      {"aten::nll_loss_backward", nll_loss},
      {"aten::nll_loss2d_backward", nll_loss},
      {"aten::binary_cross_entropy", binary_cross_entropy},
      {"aten::binary_cross_entropy_backward", binary_cross_entropy_backward},
      {"aten::smooth_l1_loss_backward", smooth_loss_backward},
      {"aten::huber_loss_backward", smooth_loss_backward},
      {"aten::multi_margin_loss_backward", multi_margin_loss},
      {"aten::embedding_dense_backward", embedding},
      {"aten::_embedding_bag", embedding_bag},
      {"aten::_embedding_bag_forward_only", embedding_bag},
      {"aten::_embedding_bag_backward", embedding_bag_backward},
      {"aten::_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward},
  };
  return *all;
}

}  // namespace

Guard find_guard(const std::string& name) {
  for (const auto* guards : {&element_guards(), &layer_guards(), &number_guards()}) {
    if (const auto found = guards->find(name); found != guards->end()) return found->second;
  }
  return nullptr;
}

void guard_sparse(const at::Tensor& tensor) {
  if (tensor.layout() != at::kSparse) refuse("a sparse argument must be a COO tensor");
  const at::Tensor indices = tensor._indices(), values = tensor._values();
  require(indices.dim() == 2 && indices.size(0) == tensor.sparse_dim() && values.dim() >= 1 &&
              values.size(0) == indices.size(1) && indices.scalar_type() == at::kLong,
          "a sparse argument must have an index for each value");
  // A graph can resize the indices and the values after the sparse tensor was made.
  require(values.sizes().slice(1) == tensor.sizes().slice(tensor.sparse_dim()),
          "the values of a sparse argument must have its shape");
  for (int64_t i = 0; i < indices.size(0); ++i) {
    require_range(indices[i], 0, tensor.size(i), "indices of a sparse argument");
  }
}

}  // namespace trireme::internal
