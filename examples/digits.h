#pragma once

#include <torch/torch.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// Scikit-learn's handwritten digits, and a net that classifies them. The net has the names of the
// one in pretrain_digits.py, so that each can load the weights of the other.

struct Digits {
  torch::Tensor images, labels;  // float32[n, 1, 8, 8] from 0 to 1; int64[n]

  // Returns the digits of a CSV file: lines of 64 pixels, each from 0 to 16, and the digit.
  static Digits load(const std::string& path) {
    std::ifstream file(path);
    std::vector<float> numbers;
    for (std::string number, line; std::getline(file, line);) {
      for (std::istringstream fields(line); std::getline(fields, number, ',');) {
        numbers.push_back(std::stof(number));
      }
    }
    if (numbers.empty() || numbers.size() % 65 != 0) {
      throw std::runtime_error(path + " is not a file of digits");
    }
    const torch::Tensor table = torch::tensor(numbers).reshape({-1, 65});
    return {table.narrow(1, 0, 64).reshape({-1, 1, 8, 8}) / 16,
            table.select(1, 64).to(torch::kInt64)};
  }

  // Returns every third digit, for tests, or the others, for training.
  Digits part(bool test) const {
    const torch::Tensor third = torch::arange(labels.size(0)).remainder(3) == 0;
    const torch::Tensor rows = torch::nonzero(third == test).squeeze(1);
    return {images.index_select(0, rows), labels.index_select(0, rows)};
  }
};

struct DigitsNetImpl : torch::nn::Module {
  DigitsNetImpl() {
    register_module("features", features);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    return head->forward(features->forward(images));
  }
  torch::nn::Sequential features{torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
                                 torch::nn::ReLU(),
                                 torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)),
                                 torch::nn::ReLU(),
                                 torch::nn::MaxPool2d(2),
                                 torch::nn::Flatten()};
  torch::nn::Linear head{512, 10};
};
TORCH_MODULE(DigitsNet);
