// Pooling and padding.
#include "tests/integration/layers/layer.h"

namespace trireme {

using torch::Tensor;
namespace nn = torch::nn;

LayerFamily pooling_layers() {
  LayerFamily family("Pooling");
  const Tensor line = torch::randn({2, 3, 8}), image = torch::randn({2, 3, 8, 8}),
               volume = torch::randn({2, 3, 6, 6, 6});
  family.add<nn::AvgPool1d>("AvgPool1d", kOne, {line}, 2);
  family.add<nn::AvgPool2d>("AvgPool2d", kOne, {image}, 2);
  family.add<nn::AvgPool3d>("AvgPool3d", kOne, {volume}, 2);
  family.add<nn::MaxPool1d>("MaxPool1d", kOne, {line}, 2);
  family.add<nn::MaxPool2d>("MaxPool2d", kOne, {image}, 2);
  family.add<nn::MaxPool3d>("MaxPool3d", kOne, {volume}, 2);
  family.add<nn::AdaptiveMaxPool1d>("AdaptiveMaxPool1d", kOne, {line}, 3);
  family.add<nn::AdaptiveMaxPool2d>("AdaptiveMaxPool2d", kOne, {image}, 3);
  family.add<nn::AdaptiveMaxPool3d>("AdaptiveMaxPool3d", kOne, {volume}, 3);
  family.add<nn::AdaptiveAvgPool1d>("AdaptiveAvgPool1d", kOne, {line}, 3);
  family.add<nn::AdaptiveAvgPool2d>("AdaptiveAvgPool2d", kOne, {image}, 3);
  family.add<nn::AdaptiveAvgPool3d>("AdaptiveAvgPool3d", kOne, {volume}, 3);
  // Element 2 * i of the unpooled tensor is the one that the pooled element i comes from.
  const auto evens = [](int64_t count) { return torch::arange(count) * 2; };
  family.add<nn::MaxUnpool1d>("MaxUnpool1d", kTwo, {line, evens(8).expand({2, 3, 8}).clone()}, 2);
  family.add<nn::MaxUnpool2d>("MaxUnpool2d", kTwo,
                              {image, evens(64).view({8, 8}).expand({2, 3, 8, 8}).clone()}, 2);
  family.add<nn::MaxUnpool3d>(
      "MaxUnpool3d", kTwo, {volume, evens(216).view({6, 6, 6}).expand({2, 3, 6, 6, 6}).clone()}, 2);
  family.add<nn::FractionalMaxPool2d>("FractionalMaxPool2d", kOne, {image},
                                      nn::FractionalMaxPool2dOptions(2).output_size(5));
  family.add<nn::FractionalMaxPool3d>("FractionalMaxPool3d", kOne, {volume},
                                      nn::FractionalMaxPool3dOptions(2).output_size(4));
  family.add<nn::LPPool1d>("LPPool1d", kOne, {line}, nn::LPPool1dOptions(2, 2));
  family.add<nn::LPPool2d>("LPPool2d", kOne, {image}, nn::LPPool2dOptions(2, 2));
  family.add<nn::LPPool3d>("LPPool3d", kOne, {volume}, nn::LPPool3dOptions(2, 2));
  return family;
}

LayerFamily padding_layers() {
  LayerFamily family("Padding");
  const Tensor line = torch::randn({2, 3, 6}), image = torch::randn({2, 3, 6, 6}),
               volume = torch::randn({2, 3, 4, 4, 4});
  family.add<nn::ReflectionPad1d>("ReflectionPad1d", kOne, {line}, 2);
  family.add<nn::ReflectionPad2d>("ReflectionPad2d", kOne, {image}, 2);
  family.add<nn::ReflectionPad3d>("ReflectionPad3d", kOne, {volume}, 2);
  family.add<nn::ReplicationPad1d>("ReplicationPad1d", kOne, {line}, 2);
  family.add<nn::ReplicationPad2d>("ReplicationPad2d", kOne, {image}, 2);
  family.add<nn::ReplicationPad3d>("ReplicationPad3d", kOne, {volume}, 2);
  family.add<nn::ZeroPad1d>("ZeroPad1d", kOne, {line}, 2);
  family.add<nn::ZeroPad2d>("ZeroPad2d", kOne, {image}, 2);
  family.add<nn::ZeroPad3d>("ZeroPad3d", kOne, {volume}, 2);
  family.add<nn::ConstantPad1d>("ConstantPad1d", kOne, {line}, nn::ConstantPad1dOptions(2, 0.5));
  family.add<nn::ConstantPad2d>("ConstantPad2d", kOne, {image}, nn::ConstantPad2dOptions(2, 0.5));
  family.add<nn::ConstantPad3d>("ConstantPad3d", kOne, {volume}, nn::ConstantPad3dOptions(2, 0.5));
  return family;
}

}  // namespace trireme
