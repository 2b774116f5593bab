// Activations, dropouts and normalizations.
#include "tests/integration/layers/layer.h"

namespace trireme {

using torch::Tensor;
namespace nn = torch::nn;

LayerFamily activation_layers() {
  LayerFamily family("Activations");
  const Tensor x = torch::randn({3, 4, 5, 5}) * 2;
  family.add<nn::ELU>("ELU", kOne, {x});
  family.add<nn::SELU>("SELU", kOne, {x});
  family.add<nn::Hardshrink>("Hardshrink", kOne, {x});
  family.add<nn::Hardtanh>("Hardtanh", kOne, {x});
  family.add<nn::LeakyReLU>("LeakyReLU", kOne, {x});
  family.add<nn::LogSigmoid>("LogSigmoid", kOne, {x});
  family.add<nn::Softmax>("Softmax", kOne, {x}, 1);
  family.add<nn::Softmin>("Softmin", kOne, {x}, 1);
  family.add<nn::LogSoftmax>("LogSoftmax", kOne, {x}, 1);
  family.add<nn::Softmax2d>("Softmax2d", kOne, {x});
  family.add<nn::PReLU>("PReLU", kOne, {x}, nn::PReLUOptions().num_parameters(4));
  family.add<nn::ReLU>("ReLU", kOne, {x});
  family.add<nn::ReLU>("ReLU (in place)", kOne, {x}, nn::ReLUOptions(true));
  family.add<nn::ReLU6>("ReLU6", kOne, {x});
  family.add<nn::RReLU>("RReLU", kOne, {x});
  family.add<nn::CELU>("CELU", kOne, {x});
  family.add<nn::GLU>("GLU", kOne, {x}, 1);
  family.add<nn::GELU>("GELU", kOne, {x});
  family.add<nn::SiLU>("SiLU", kOne, {x});
  family.add<nn::Mish>("Mish", kOne, {x});
  family.add<nn::Sigmoid>("Sigmoid", kOne, {x});
  family.add<nn::Softplus>("Softplus", kOne, {x});
  family.add<nn::Softshrink>("Softshrink", kOne, {x});
  family.add<nn::Softsign>("Softsign", kOne, {x});
  family.add<nn::Tanh>("Tanh", kOne, {x});
  family.add<nn::Tanhshrink>("Tanhshrink", kOne, {x});
  family.add<nn::Threshold>("Threshold", kOne, {x}, 0.1, 20);
  return family;
}

LayerFamily dropout_layers() {
  LayerFamily family("Dropouts");
  const Tensor x = torch::randn({3, 4, 5, 5}), volume = torch::randn({2, 3, 4, 4, 4});
  family.add<nn::Dropout>("Dropout", kOne, {x}, 0.3);
  family.add<nn::Dropout>("Dropout (in place)", kOne, {x},
                          nn::DropoutOptions().p(0.3).inplace(true));
  family.add<nn::Dropout2d>("Dropout2d", kOne, {x}, 0.3);
  family.add<nn::Dropout3d>("Dropout3d", kOne, {volume}, 0.3);
  family.add<nn::AlphaDropout>("AlphaDropout", kOne, {x}, 0.3);
  family.add<nn::FeatureAlphaDropout>("FeatureAlphaDropout", kOne, {x}, 0.3);
  return family;
}

LayerFamily normalization_layers() {
  LayerFamily family("Normalizations");
  const Tensor line = torch::randn({5, 4, 6}), image = torch::randn({3, 4, 5, 5}),
               volume = torch::randn({2, 4, 3, 3, 3});
  family.add<nn::BatchNorm1d>("BatchNorm1d", kOne, {line}, 4);
  family.add<nn::BatchNorm2d>("BatchNorm2d", kOne, {image}, 4);
  family.add<nn::BatchNorm3d>("BatchNorm3d", kOne, {volume}, 4);
  family.add<nn::BatchNorm2d>("BatchNorm2d (cumulative average)", kOne, {image},
                              nn::BatchNorm2dOptions(4).momentum(std::nullopt));
  family.add<nn::InstanceNorm1d>("InstanceNorm1d", kOne, {line}, 4);
  family.add<nn::InstanceNorm2d>("InstanceNorm2d", kOne, {image}, 4);
  family.add<nn::InstanceNorm2d>(
      "InstanceNorm2d (affine, running statistics)", kOne, {image},
      nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true));
  family.add<nn::InstanceNorm3d>("InstanceNorm3d", kOne, {volume}, 4);
  family.add<nn::LayerNorm>("LayerNorm", kOne, {line},
                            nn::LayerNormOptions(std::vector<int64_t>{6}));
  family.add<nn::GroupNorm>("GroupNorm", kOne, {image}, 2, 4);
  family.add<nn::LocalResponseNorm>("LocalResponseNorm", kOne, {image}, 2);
  family.add<nn::CrossMapLRN2d>("CrossMapLRN2d", kOne, {image}, 3);
  return family;
}

}  // namespace trireme
