// Losses and distances.
#include "tests/integration/layers/layer.h"

namespace trireme {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace nn = torch::nn;

LayerFamily loss_layers() {
  LayerFamily family("Losses and distances");
  const Tensor x = torch::randn({6, 4}), y = torch::randn({6, 4}), z = torch::randn({6, 4});
  const Tensor probabilities = torch::rand({6, 4}) * 0.8 + 0.1;
  const Tensor bits = torch::randint(0, 2, {6, 4}).to(torch::kFloat), signs = bits * 2 - 1;
  const Tensor classes = torch::randint(0, 4, {6}), sign = torch::ones({6}) - 2 * (classes % 2);
  family.add<nn::CosineSimilarity>("CosineSimilarity", kTwo, {x, y});
  family.add<nn::PairwiseDistance>("PairwiseDistance", kTwo, {x, y});
  family.add<nn::L1Loss>("L1Loss", kTwo, {x, y});
  family.add<nn::KLDivLoss>("KLDivLoss", kTwo, {torch::log_softmax(x, 1), torch::softmax(y, 1)},
                            nn::KLDivLossOptions(torch::kBatchMean));
  family.add<nn::MSELoss>("MSELoss", kTwo, {x, y});
  family.add<nn::BCELoss>("BCELoss", kTwo, {probabilities, bits});
  family.add<nn::HingeEmbeddingLoss>("HingeEmbeddingLoss", kTwo, {x, signs});
  family.add<nn::MultiMarginLoss>("MultiMarginLoss", kTwo, {x, classes});
  family.add<nn::CosineEmbeddingLoss>("CosineEmbeddingLoss", kThree, {x, y, sign});
  family.add<nn::SmoothL1Loss>("SmoothL1Loss", kTwo, {x, y});
  family.add<nn::HuberLoss>("HuberLoss", kTwo, {x, y});
  // The classes of each row end with the first -1.
  const Tensor labels = torch::tensor({0, 2, -1, -1}, torch::kLong).expand({6, 4}).clone();
  family.add<nn::MultiLabelMarginLoss>("MultiLabelMarginLoss", kTwo, {x, labels});
  family.add<nn::SoftMarginLoss>("SoftMarginLoss", kTwo, {x, signs});
  family.add<nn::MultiLabelSoftMarginLoss>("MultiLabelSoftMarginLoss", kTwo, {x, bits});
  family.add<nn::TripletMarginLoss>("TripletMarginLoss", kThree, {x, y, z});
  family.add<nn::TripletMarginWithDistanceLoss>("TripletMarginWithDistanceLoss", kThree, {x, y, z});
  family.add<nn::CTCLoss>(
      "CTCLoss",
      [](auto& layer, const Tensors& x) { return Tensors{layer->forward(x[0], x[1], x[2], x[3])}; },
      {torch::log_softmax(torch::randn({8, 2, 5}), 2), torch::randint(1, 5, {2, 3}),
       torch::full({2}, 8, torch::kLong), torch::full({2}, 3, torch::kLong)});
  family.add<nn::PoissonNLLLoss>("PoissonNLLLoss", kTwo, {x, y.abs()});
  family.add<nn::MarginRankingLoss>("MarginRankingLoss", kThree,
                                    {torch::randn({6}), torch::randn({6}), sign});
  family.add<nn::NLLLoss>("NLLLoss", kTwo, {torch::log_softmax(x, 1), classes});
  family.add<nn::CrossEntropyLoss>("CrossEntropyLoss", kTwo, {x, classes});
  family.add<nn::CrossEntropyLoss>(
      "CrossEntropyLoss (weights, smoothing)", kTwo, {x, classes},
      nn::CrossEntropyLossOptions().weight(torch::rand({4})).label_smoothing(0.1));
  family.add<nn::BCEWithLogitsLoss>("BCEWithLogitsLoss", kTwo, {x, bits});
  family.add<nn::AdaptiveLogSoftmaxWithLoss>(
      "AdaptiveLogSoftmaxWithLoss",
      [](auto& layer, const Tensors& x) { return Tensors{layer->forward(x[0], x[1]).output}; },
      {torch::randn({6, 16}), torch::randint(0, 10, {6})},
      nn::AdaptiveLogSoftmaxWithLossOptions(16, 10, {4, 8}));
  return family;
}

}  // namespace trireme
