// Guards of kernels that take all tensors of a layer or an optimizer. Such a kernel takes one size,
// a number of channels or the shape of `self`, from one argument and uses it to walk over the
// others. The guards compute the expected shape of every argument from that size. Guards get the
// arguments by position; a comment above each one lists them in the order of the operator's schema.
//
// LSTMs are special: oneDNN keeps a workspace between the forward and the backward operator whose
// size only oneDNN knows. lstm_workspace_bytes() finds it by running the forward operator once for
// each shape.
#include "trireme/graph/guards_layers.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "trireme/base/mutex.h"
#include "trireme/graph/guard_checks.h"

namespace trireme::internal {
namespace {

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, ...)
void layer_norm_backward(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad_out"),
                   &input = dense(arguments[1], "input");
  const Sizes shape = arguments[2].toIntVector();
  require(input.dim() >= static_cast<int64_t>(shape.size()), "'normalized_shape' is too long");
  int64_t rows = 1;
  for (int64_t i = 0; i < input.dim() - static_cast<int64_t>(shape.size()); ++i) {
    rows = product(rows, input.size(i));
  }
  require_sizes(gradient, input.sizes().vec(), "grad_out");
  require_numel(dense(arguments[3], "mean"), rows, "mean");
  require_numel(dense(arguments[4], "rstd"), rows, "rstd");
  for (int i : {5, 6}) {
    if (is_given(arguments[i]))
      require_sizes(dense(arguments[i], "weight"), shape, "weight or bias");
  }
}

// Checks that `input` has n * channels * plane elements and that the groups divide the channels.
void guard_groups(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  Arguments counts) {
  const int64_t n = counts[0].toInt(), channels = counts[1].toInt(), plane = counts[2].toInt(),
                groups = counts[3].toInt();
  require(n >= 0 && channels >= 0 && plane >= 0 && groups > 0 &&
              groups <= std::max<int64_t>(channels, 1) && channels % groups == 0 &&
              input.dim() >= 2,
          "'N', 'C', 'HxW' and 'group' must fit 'input'");
  require(input.numel() == product(product(n, channels), plane),
          "'input' must have N * C * HxW elements");
  for (const at::Tensor& tensor : {weight, bias}) {
    if (tensor.defined()) require_numel(tensor, channels, "weight or bias");
  }
}

at::Tensor given_or_undefined(const c10::IValue& argument, const char* name) {
  return is_given(argument) ? dense(argument, name) : at::Tensor();
}

// (input, weight, bias, N, C, HxW, group, eps)
void group_norm(Arguments arguments) {
  guard_groups(dense(arguments[0], "input"), given_or_undefined(arguments[1], "weight"),
               given_or_undefined(arguments[2], "bias"), arguments.slice(3, 4));
}

// (grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
void group_norm_backward(Arguments arguments) {
  const at::Tensor& input = dense(arguments[1], "input");
  guard_groups(input, given_or_undefined(arguments[4], "weight"), {}, arguments.slice(5, 4));
  require_sizes(dense(arguments[0], "grad_out"), input.sizes().vec(), "grad_out");
  require(arguments[9].toBoolList().get(0) || input.is_contiguous(),
          "'output_mask' must ask for the gradient of an 'input' that is not contiguous");
  const int64_t statistics = product(arguments[5].toInt(), arguments[8].toInt());
  require_numel(dense(arguments[2], "mean"), statistics, "mean");
  require_numel(dense(arguments[3], "rstd"), statistics, "rstd");
}

// Checks that each argument that is given has one entry per channel of `input`. With `or_none`, it
// may also be empty.
void guard_channels(const at::Tensor& input, Arguments arguments, bool or_none) {
  require(input.dim() >= 2, "'input' must have channels");
  for (const c10::IValue& argument : arguments) {
    if (!is_given(argument)) continue;
    const at::Tensor& tensor = dense(argument, "a weight or statistic");
    if (or_none && tensor.numel() == 0) continue;
    require_sizes(tensor, {input.size(1)}, "a weight or statistic");
  }
}

// (input, weight, bias, running_mean, running_var, training, ...)
void batch_norm(Arguments arguments) {
  guard_channels(dense(arguments[0], "input"), arguments.slice(1, 4), false);
  require(arguments[5].toBool() || (is_given(arguments[3]) && is_given(arguments[4])),
          "'running_mean' and 'running_var' must be given outside of training");
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, ...)
void batch_norm_backward(Arguments arguments) {
  const at::Tensor& input = dense(arguments[1], "input");
  require_sizes(dense(arguments[0], "grad_out"), input.sizes().vec(), "grad_out");
  require(input.numel() > 0, "'input' must not be empty");
  const bool train = arguments[7].toBool();
  guard_channels(input, arguments.slice(2, 3), false);
  guard_channels(input, arguments.slice(5, 2), !train);
  const int first = train ? 5 : 3;
  require(is_given(arguments[first]) && is_given(arguments[first + 1]),
          "the statistics must be given: 'save_mean' and 'save_invstd' in training, 'running_mean' "
          "and 'running_var' otherwise");
}

// A fused optimizer treats the tensors in its first `kLists` lists as plain memory of the size of
// the parameters in `self`. `kSteps` is the position of the list of step counts, -1 for none.
template <int kLists, int kSteps>
void fused_optimizer(Arguments arguments) {
  const c10::List<at::Tensor> parameters = arguments[0].toTensorList();
  for (int list = 0; list < kLists; ++list) {
    const c10::List<at::Tensor> tensors = arguments[list].toTensorList();
    if (tensors.empty() && list > 1) continue;  // state that this variant does not use
    require(tensors.size() == parameters.size(), "its lists must have the same length");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor tensor = tensors.get(i), parameter = parameters.get(i);
      require(tensor.defined() && tensor.layout() == at::kStrided &&
                  tensor.sizes() == parameter.sizes() && tensor.strides() == parameter.strides() &&
                  tensor.is_non_overlapping_and_dense() &&
                  tensor.scalar_type() == parameter.scalar_type(),
              "a gradient or state differs from its parameter in shape, strides or dtype");
    }
  }
  if (kSteps >= 0) {
    const c10::List<at::Tensor> steps = arguments[std::max(kSteps, 0)].toTensorList();
    require(steps.size() == parameters.size(), "its lists must have the same length");
    for (const at::Tensor& step : steps) {
      require(step.defined() && step.numel() == 1 && step.scalar_type() == at::kFloat,
              "a step count must be a tensor of one float");
    }
  }
  // The tensors after the lists are scalars: learning rate, scale, found_inf.
  for (const c10::IValue& argument : arguments.slice(kLists)) {
    if (is_given(argument)) require_numel(argument.toTensor(), 1, "lr, grad_scale or found_inf");
  }
}

void guard_adam_state(Arguments arguments) {
  require(!arguments[2].toTensorList().empty() && !arguments[3].toTensorList().empty(),
          "'exp_avgs' and 'exp_avg_sqs' must be given");
  const auto amsgrad = arguments[11];
  require(!amsgrad.toBool() || !arguments[4].toTensorList().empty(),
          "'max_exp_avg_sqs' must be given with 'amsgrad'");
}

// (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, ...)
void adam(Arguments arguments) {
  fused_optimizer<5, 5>(arguments);
  guard_adam_state(arguments);
}

// (self, grads, state_sums, state_steps, ...)
void adagrad(Arguments arguments) {
  fused_optimizer<3, 3>(arguments);
  require(!arguments[2].toTensorList().empty() || arguments[0].toTensorList().empty(),
          "'state_sums' must be given");
}

// (self, grads, momentum_buffer_list, weight_decay, momentum, ...)
void sgd(Arguments arguments) {
  fused_optimizer<3, -1>(arguments);
  require(arguments[4].toDouble() == 0 || !arguments[2].toTensorList().empty(),
          "'momentum_buffer_list' must be given if 'momentum' is not 0");
}

// Checks query [B,H,Lq,E], key [B,H,Lk,E], value [B,H,Lk,E], and the mask if it is given.
void guard_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const c10::IValue& mask) {
  require(query.dim() == 4 && query.numel() > 0,
          "'query' must have four dimensions, none of them 0");
  require(key.dim() == 4 && key.numel() > 0, "'key' must have four dimensions, none of them 0");
  require_sizes(key, {query.size(0), query.size(1), key.size(2), query.size(3)}, "key");
  require_sizes(value, key.sizes().vec(), "value");
  for (const at::Tensor& tensor : {query, key, value}) {
    require(tensor.stride(3) == 1 || tensor.size(3) == 1,
            "'query', 'key' and 'value' must be contiguous in their last dimension");
  }
  require(key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
          "'query', 'key' and 'value' must have the same dtype");
  if (!is_given(mask)) return;
  const at::Tensor& given = dense(mask, "attn_mask");
  const Sizes full = {query.size(0), query.size(1), query.size(2), key.size(2)};
  require(given.dim() == 2 || given.dim() == 4, "'attn_mask' must have two or four dimensions");
  for (int64_t i = 1; i <= given.dim(); ++i) {
    require(given.size(-i) == 1 || given.size(-i) == full[full.size() - i],
            "'attn_mask' must be broadcastable to the attention weights");
  }
}

// (query, key, value, dropout, causal, attn_mask, scale)
void attention(Arguments arguments) {
  guard_attention(dense(arguments[0], "query"), dense(arguments[1], "key"),
                  dense(arguments[2], "value"), arguments[5]);
}

// (grad_out, query, key, value, out, logsumexp, dropout, causal, attn_mask, scale)
void attention_backward(Arguments arguments) {
  const at::Tensor& query = dense(arguments[1], "query");
  guard_attention(query, dense(arguments[2], "key"), dense(arguments[3], "value"), arguments[8]);
  require_sizes(dense(arguments[0], "grad_out"), query.sizes().vec(), "grad_out");
  require_sizes(dense(arguments[4], "out"), query.sizes().vec(), "out");
  require_sizes(dense(arguments[5], "logsumexp"), query.sizes().slice(0, 3).vec(), "logsumexp");
}

struct LstmShape {
  int64_t steps, batch, inputs, hidden;
};

void guard_one_dtype(Arguments tensors) {
  for (const c10::IValue& tensor : tensors) {
    require(
        !is_given(tensor) || tensor.toTensor().scalar_type() == tensors[0].toTensor().scalar_type(),
        "its tensors must have the same dtype");
  }
}

// Checks the layer's shape, which oneDNN takes from numbers, against the tensors, and returns it.
// On a CPU, only LSTMs use this operator.
LstmShape guard_lstm(Arguments tensors, int64_t mode, int64_t hidden, bool has_biases,
                     const Sizes& batch_sizes) {
  constexpr int64_t kLstm = 2, kGates = 4;
  const at::Tensor& input = dense(tensors[0], "input");
  require(mode == kLstm && batch_sizes.empty(),
          "it must be an LSTM over sequences of equal length");
  require(input.dim() == 3 && input.numel() > 0 && hidden > 0 && hidden < (1 << 24),
          "'input' must have three dimensions (steps, batch, features), none of them 0, and "
          "'hidden_size' must be in range");
  const LstmShape layer = {input.size(0), input.size(1), input.size(2), hidden};
  require_sizes(dense(tensors[1], "weight"), {kGates * hidden, layer.inputs}, "input weight");
  require_sizes(dense(tensors[2], "weight"), {kGates * hidden, hidden}, "hidden weight");
  for (int bias : {3, 4}) {
    if (has_biases) require_sizes(dense(tensors[bias], "bias"), {kGates * hidden}, "bias");
  }
  for (int state : {5, 6}) {
    require_numel(dense(tensors[state], "state"), product(layer.batch, hidden), "hx or cx");
  }
  guard_one_dtype(tensors);
  return layer;
}

// (input, 4 weights, hx, cx, reverse, batch_sizes, mode, hidden, layers, biases, bidirectional,
// batch_first, train)
void lstm(Arguments arguments) {
  guard_lstm(arguments.slice(0, 7), arguments[9].toInt(), arguments[10].toInt(),
             arguments[12].toBool(), arguments[8].toIntVector());
}

// Returns the size of oneDNN's workspace for a layer. Only oneDNN knows it, so the forward operator
// is run, once for each shape. `arguments` are those of the backward operator. Thread-safe.
int64_t lstm_workspace_bytes(const LstmShape& layer, Arguments arguments) {
  static Mutex mutex;
  static auto* known =
      new std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, int>, int64_t>;
  const at::Tensor& input = arguments[0].toTensor();
  const bool has_biases = arguments[17].toBool();
  const std::tuple key(layer.steps, layer.batch, layer.inputs, layer.hidden, has_biases,
                       static_cast<int>(input.scalar_type()));
  {
    MutexLock lock(mutex);
    if (const auto found = known->find(key); found != known->end()) return found->second;
  }
  // Without gradient mode the forward operator returns no workspace. The lock is not held
  // meanwhile: two threads may both measure a new shape, with the same result.
  const c10::AutoGradMode with_gradients(true);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor state = at::zeros({layer.batch, layer.hidden}, input.options());
  const int64_t bytes =
      std::get<3>(at::mkldnn_rnn_layer(
                      input, arguments[1].toTensor(), arguments[2].toTensor(),
                      arguments[3].toTensor(), arguments[4].toTensor(), state, state,
                      /*reverse=*/false, {}, arguments[14].toInt(), layer.hidden, /*num_layers=*/1,
                      has_biases, /*bidirectional=*/false, /*batch_first=*/false, /*train=*/true))
          .numel();
  MutexLock lock(mutex);
  if (known->size() >= 1024) known->clear();
  return (*known)[key] = bytes;
}

// (input, 4 weights, hx, cx, output, hy, cy, grad_output, grad_hy, grad_cy, reverse, mode, hidden,
// layers, biases, train, bidirectional, batch_sizes, batch_first, workspace)
void lstm_backward(Arguments arguments) {
  const LstmShape layer =
      guard_lstm(arguments.slice(0, 7), arguments[14].toInt(), arguments[15].toInt(),
                 arguments[17].toBool(), arguments[20].toIntVector());
  guard_one_dtype(arguments.slice(0, 13));
  for (int output : {7, 10}) {
    if (!is_given(arguments[output])) continue;
    require_sizes(dense(arguments[output], "output"), {layer.steps, layer.batch, layer.hidden},
                  "output or its gradient");
  }
  for (int state : {8, 9, 11, 12}) {
    if (!is_given(arguments[state])) continue;
    require_numel(dense(arguments[state], "state"), product(layer.batch, layer.hidden),
                  "hy, cy or their gradients");
  }
  require(is_given(arguments[7]) && is_given(arguments[8]) && is_given(arguments[9]),
          "the results of the forward operator must be given: 'output', 'hy_' and 'cy_'");
  const at::Tensor& workspace = dense(arguments[22], "workspace");
  require(workspace.scalar_type() == at::kByte && workspace.is_contiguous(),
          "'workspace' must be a contiguous tensor of bytes");
  require_numel(workspace, lstm_workspace_bytes(layer, arguments), "workspace");
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask)
void convolution_backward(Arguments arguments) {
  const at::Tensor &gradient = dense(arguments[0], "grad_output"),
                   &input = dense(arguments[1], "input"), &weight = dense(arguments[2], "weight");
  const int64_t spatial = input.dim() - 2, groups = arguments[9].toInt();
  const bool transposed = arguments[7].toBool();
  require(spatial >= 1 && spatial <= 3 && gradient.dim() == input.dim() &&
              weight.dim() == input.dim() && groups > 0 && groups < (1 << 24),
          "its tensors must have the same number of dimensions, 3 to 5, and 'groups' must be in "
          "range");
  const auto numbers = [&](int argument) {
    Sizes given = arguments[argument].toIntVector();
    if (given.size() == 1) given.resize(spatial, given[0]);
    require(static_cast<int64_t>(given.size()) == spatial,
            "a stride, padding or dilation must have one number per spatial dimension");
    for (int64_t number : given)
      require(number >= 0 && number < (1 << 24), "a stride, padding or dilation is out of range");
    return given;
  };
  const Sizes stride = numbers(4), padding = numbers(5), dilation = numbers(6), extra = numbers(8);
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  require(input.size(1) == (transposed ? weight.size(0) : weight.size(1) * groups) &&
              (transposed ? weight.size(0) : channels) % groups == 0,
          "'input' and 'weight' must agree in channels");
  Sizes sizes = {input.size(0), channels};
  for (int64_t i = 0; i < spatial; ++i) {
    require(stride[i] > 0 && dilation[i] > 0, "stride and dilation must be positive");
    const int64_t in = input.size(2 + i), reach = dilation[i] * (weight.size(2 + i) - 1) + 1;
    sizes.push_back(transposed ? (in - 1) * stride[i] - 2 * padding[i] + reach + extra[i]
                               : (in + 2 * padding[i] - reach) / stride[i] + 1);
  }
  require_sizes(gradient, sizes, "grad_output");
  const bool with_bias =
      arguments[10].toBoolList().size() == 3 && arguments[10].toBoolList().get(2);
  if (with_bias && !arguments[3].isNone()) {
    require(arguments[3].toIntVector() == Sizes{channels},
            "'bias_sizes' must be the number of channels");
  }
}

// (self, dim, normalization, ...): checks the dimensions of a Fourier transform and returns them.
Sizes guard_fft(Arguments arguments) {
  const at::Tensor& self = dense(arguments[0], "self");
  const Sizes dims = arguments[1].toIntVector();
  std::vector<bool> used(self.dim(), false);
  for (int64_t dim : dims) {
    require(dim >= 0 && dim < self.dim(), "'dim' must name dimensions of 'self'");
    require(!used[dim], "'dim' must name each dimension once");
    used[dim] = true;
  }
  require(self.numel() > 0, "'self' must not be empty");
  return dims;
}

void fft(Arguments arguments) {
  guard_fft(arguments);
}

// (self, dim, normalization, last_dim_size)
void fft_to_real(Arguments arguments) {
  const Sizes dims = guard_fft(arguments);
  const int64_t size = arguments[3].toInt();
  require(!dims.empty() && size > 0,
          "'dim' must not be empty and 'last_dim_size' must be positive");
  require(arguments[0].toTensor().size(dims.back()) == size / 2 + 1,
          "'last_dim_size' must fit the last dimension in 'dim'");
}

}  // namespace

const std::unordered_map<std::string, Guard>& layer_guards() {
  static const auto* all = new std::unordered_map<std::string, Guard>{
      {"aten::convolution_backward", convolution_backward},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::_fused_adam_", adam},
      {"aten::_fused_adamw_", adam},
      {"aten::_fused_adagrad_", adagrad},
      {"aten::_fused_sgd_", sgd},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"aten::_fft_c2c", fft},
      {"aten::_fft_r2c", fft},
      {"aten::_fft_c2r", fft_to_real},
      {"aten::mkldnn_rnn_layer", lstm},
      {"aten::mkldnn_rnn_layer_backward", lstm_backward},
  };
  return *all;
}

}  // namespace trireme::internal
