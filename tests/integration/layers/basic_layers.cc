// Layers that compute a linear function of their input or rearrange it.
#include "tests/integration/layers/layer.h"

namespace trireme {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace nn = torch::nn;

namespace {

// Makes new layers each time, as the other layers do.
struct SmallSequential : nn::Sequential {
  SmallSequential() : nn::Sequential(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 2)) {}
};

}  // namespace

LayerFamily linear_layers() {
  LayerFamily family("Linear layers, embeddings, shapes");
  const Tensor x = torch::randn({5, 4});
  const Tensor image = torch::randn({2, 4, 6, 6});
  const Tensor words = torch::randint(0, 10, {4, 3}), offsets = torch::tensor({0, 2, 5});
  family.add<nn::Identity>("Identity", kOne, {x});
  family.add<nn::Linear>("Linear", kOne, {x}, 4, 3);
  family.add<nn::Bilinear>("Bilinear", kTwo, {x, torch::randn({5, 3})}, 4, 3, 2);
  family.add<nn::Flatten>("Flatten", kOne, {image});
  family.add<nn::Unflatten>("Unflatten", kOne, {x},
                            nn::UnflattenOptions(1, std::vector<int64_t>{2, 2}));
  family.add<nn::Embedding>("Embedding", kOne, {words}, 10, 4);
  family.add<nn::Embedding>("Embedding (sparse)", kOne, {words},
                            nn::EmbeddingOptions(10, 4).sparse(true));
  family.add<nn::Embedding>("Embedding (max_norm)", kOne, {words},
                            nn::EmbeddingOptions(10, 4).max_norm(1));
  family.add<nn::EmbeddingBag>("EmbeddingBag", kTwo, {words.flatten(), offsets}, 10, 4);
  family.add<nn::EmbeddingBag>("EmbeddingBag (sum, sparse)", kTwo, {words.flatten(), offsets},
                               nn::EmbeddingBagOptions(10, 4).mode(torch::kSum).sparse(true));
  family.add<nn::EmbeddingBag>("EmbeddingBag (max)", kTwo, {words.flatten(), offsets},
                               nn::EmbeddingBagOptions(10, 4).mode(torch::kMax));
  family.add<nn::PixelShuffle>("PixelShuffle", kOne, {image}, 2);
  family.add<nn::PixelUnshuffle>("PixelUnshuffle", kOne, {image}, 2);
  const auto twice = std::vector<double>{2, 2};
  family.add<nn::Upsample>("Upsample", kOne, {image}, nn::UpsampleOptions().scale_factor(twice));
  family.add<nn::Upsample>(
      "Upsample (bilinear)", kOne, {image},
      nn::UpsampleOptions().scale_factor(twice).mode(torch::kBilinear).align_corners(false));
  family.add<SmallSequential>("Sequential", kOne, {x});
  family.add<nn::Functional>("Functional", kOne, {x}, torch::elu, 1, 0, 1);
  return family;
}

LayerFamily convolution_layers() {
  LayerFamily family("Convolutions");
  const Tensor line = torch::randn({2, 3, 8}), image = torch::randn({2, 3, 8, 8}),
               volume = torch::randn({2, 3, 5, 5, 5});
  family.add<nn::Conv1d>("Conv1d", kOne, {line}, nn::Conv1dOptions(3, 4, 3));
  family.add<nn::Conv2d>("Conv2d", kOne, {image}, nn::Conv2dOptions(3, 4, 3).padding(1));
  family.add<nn::Conv2d>(
      "Conv2d (groups, reflect)", kOne, {image},
      nn::Conv2dOptions(3, 6, 3).groups(3).padding(1).padding_mode(torch::kReflect));
  family.add<nn::Conv3d>("Conv3d", kOne, {volume}, nn::Conv3dOptions(3, 4, 3));
  family.add<nn::ConvTranspose1d>("ConvTranspose1d", kOne, {line},
                                  nn::ConvTranspose1dOptions(3, 4, 3).stride(2));
  family.add<nn::ConvTranspose2d>("ConvTranspose2d", kOne, {image},
                                  nn::ConvTranspose2dOptions(3, 4, 3).stride(2));
  family.add<nn::ConvTranspose3d>("ConvTranspose3d", kOne, {volume},
                                  nn::ConvTranspose3dOptions(3, 4, 3));
  family.add<nn::Unfold>("Unfold", kOne, {image}, nn::UnfoldOptions(3));
  family.add<nn::Fold>("Fold", kOne, {torch::randn({2, 12, 9})}, nn::FoldOptions(4, 2));
  return family;
}

}  // namespace trireme
