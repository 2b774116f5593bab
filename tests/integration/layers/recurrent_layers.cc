// Recurrent layers and transformers.
#include "tests/integration/layers/layer.h"

namespace trireme {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace nn = torch::nn;

namespace {

// Calls forward() of a layer that returns a pair of tensors.
constexpr auto kPair = [](auto& layer, const Tensors& x) {
  const auto [first, second] = layer->forward(x[0]);
  return Tensors{first, second};
};
// Calls forward() of a layer that returns a tensor and a state of two tensors.
constexpr auto kWithState = [](auto& layer, const Tensors& x) {
  const auto [output, state] = layer->forward(x[0]);
  return Tensors{output, std::get<0>(state), std::get<1>(state)};
};

}  // namespace

LayerFamily recurrent_layers() {
  LayerFamily family("Recurrent layers");
  const Tensor sequence = torch::randn({5, 3, 4}), x = torch::randn({3, 4}),
               hidden = torch::randn({3, 6});
  family.add<nn::RNN>("RNN", kPair, {sequence}, 4, 6);
  family.add<nn::RNN>("RNN (ReLU, two layers, dropout)", kPair, {sequence},
                      nn::RNNOptions(4, 6).num_layers(2).nonlinearity(torch::kReLU).dropout(0.2));
  family.add<nn::LSTM>("LSTM", kWithState, {sequence}, 4, 6);
  family.add<nn::LSTM>("LSTM (two layers, bidirectional, dropout)", kWithState, {sequence},
                       nn::LSTMOptions(4, 6).num_layers(2).bidirectional(true).dropout(0.2));
  family.add<nn::LSTM>("LSTM (projection)", kWithState, {sequence},
                       nn::LSTMOptions(4, 6).proj_size(3));
  family.add<nn::GRU>("GRU", kPair, {sequence}, 4, 6);
  family.add<nn::GRU>("GRU (batch first, bidirectional)", kPair, {sequence},
                      nn::GRUOptions(4, 6).batch_first(true).bidirectional(true));
  family.add<nn::RNNCell>("RNNCell", kTwo, {x, hidden}, 4, 6);
  family.add<nn::LSTMCell>(
      "LSTMCell",
      [](auto& layer, const Tensors& x) {
        const auto [h, c] = layer->forward(x[0], std::make_tuple(x[1], x[2]));
        return Tensors{h, c};
      },
      {x, hidden, torch::randn({3, 6})}, 4, 6);
  family.add<nn::GRUCell>("GRUCell", kTwo, {x, hidden}, 4, 6);
  return family;
}

LayerFamily attention_layers() {
  LayerFamily family("Attention");
  const Tensor source = torch::randn({5, 2, 8}), target = torch::randn({4, 2, 8});
  const auto encoder_layer = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16);
  const auto decoder_layer = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16);
  family.add<nn::MultiheadAttention>(
      "MultiheadAttention",
      [](auto& layer, const Tensors& x) {
        const auto [output, weights] = layer->forward(x[0], x[1], x[1]);
        return Tensors{output, weights};
      },
      {target, source}, nn::MultiheadAttentionOptions(8, 2).dropout(0.1));
  family.add<nn::MultiheadAttention>(
      "MultiheadAttention (itself)",
      [](auto& layer, const Tensors& x) {
        const auto [output, weights] = layer->forward(x[0], x[0], x[0]);
        return Tensors{output, weights};
      },
      {source}, nn::MultiheadAttentionOptions(8, 2));
  family.add<nn::TransformerEncoderLayer>("TransformerEncoderLayer", kOne, {source}, encoder_layer);
  family.add<nn::TransformerDecoderLayer>("TransformerDecoderLayer", kTwo, {target, source},
                                          decoder_layer);
  family.add<nn::TransformerEncoder>("TransformerEncoder", kOne, {source},
                                     nn::TransformerEncoderOptions(encoder_layer, 2));
  family.add<nn::TransformerDecoder>("TransformerDecoder", kTwo, {target, source},
                                     nn::TransformerDecoderOptions(decoder_layer, 2));
  family.add<nn::Transformer>(
      "Transformer", kTwo, {source, target},
      nn::TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(1).dim_feedforward(16));
  return family;
}

}  // namespace trireme
