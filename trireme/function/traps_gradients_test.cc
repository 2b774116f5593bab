// Programs that train: variables, autograd, sparse gradients, modules.
#include <torch/torch.h>

#include "trireme/function/module.h"
#include "trireme/function/trap_program.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace {

void add_variable_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add("GradientDescent", [] {
    Variable w = weight("w", {3, 2}), b = weight("b", {2});
    return Step([w, b](Tensor x, Tensor) {
      Tensor loss = (torch::tanh(x.matmul(w.read()) + b.read())).pow(2).mean();
      descend(loss, {w, b});
      return Tensors{loss, w.read(), b.read()};
    });
  });
  // Autograd saves the outputs of sigmoid, softmax and exp, and unpacks them as new tensors.
  add("SavedOutputs", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor h = torch::sigmoid(x.matmul(w.read()));
      Tensor loss = (torch::softmax(h.exp(), 1) * torch::tanh(h)).sqrt().sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("InPlaceActivationInAutograd", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor h = x.matmul(w.read()).relu_();
      Tensor loss = h.mul(2).sigmoid_().sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("ReadAfterWrite", [] {
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      Tensor before = x * w.read();
      w.assign_add(x.sum(0));
      Tensor after = x * w.read();
      w.assign(after.mean(0));
      return Tensors{before, after, w.read() * 2};
    });
  });
  add("VariableIsReturned", [] {
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      w.assign_add(x.sum(0));
      return Tensors{w.read(), w.read().view({3, 1})};
    });
  });
  add("TwoViewsOfOneVariable", [] {
    Variable w = weight("w", {4, 3});
    return Step([w](Tensor x, Tensor) {
      torch::NoGradGuard no_gradients;
      w.read().narrow(0, 0, 2).add_(1);
      w.read().t()[1].mul_(2);
      return Tensors{w.read() + x};
    });
  });
  add("IntegerVariable", [] {
    Variable count("count", torch::zeros({}, torch::kLong));
    return Step([count](Tensor x, Tensor y) {
      count.assign_add(y.sum());
      return Tensors{count.read(), x * count.read()};
    });
  });
  add(
      "VariablesThatShareMemoryAreRefused",
      [] {
        auto net = std::make_shared<torch::nn::Module>();
        Tensor flat = torch::ones({6});
        net->register_buffer("a", flat.narrow(0, 0, 3));
        net->register_buffer("b", flat.narrow(0, 3, 3));
        track(net);
        return Step([net](Tensor x, Tensor) {
          net->buffers()[1].add_(x.sum(0));
          return Tensors{x * net->buffers()[0], x * net->buffers()[1]};
        });
      },
      "share memory");
}

void add_autograd_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add("TiedWeights", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor loss = x.matmul(w.read()).matmul(w.read().t()).pow(2).mean();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("BackwardIntoGrad", [] {
    Variable w = weight("w", {3, 2});
    return Step([w](Tensor x, Tensor) {
      w.read().mutable_grad() = Tensor();
      Tensor loss = x.matmul(w.read()).pow(2).sum();
      loss.backward();
      torch::NoGradGuard no_gradients;
      Tensor(w.read()).sub_(w.read().grad() * 0.01);
      return Tensors{loss, w.read()};
    });
  });
  add("TwoBackwardsAddUp", [] {
    Variable w = weight("w", {3, 2});
    return Step([w](Tensor x, Tensor) {
      w.read().mutable_grad() = Tensor();
      x.matmul(w.read()).pow(2).sum().backward();
      (x * 2).matmul(w.read()).sum().backward();
      torch::NoGradGuard no_gradients;
      Tensor(w.read()).sub_(w.read().grad() * 0.01);
      return Tensors{w.read()};
    });
  });
  add(
      "GradientLeftByAnEarlierStepIsRefused",
      [] {
        Variable w = weight("w", {3, 2});
        return Step([w](Tensor x, Tensor) {
          Tensor loss = x.matmul(w.read()).pow(2).sum();
          loss.backward();
          torch::NoGradGuard no_gradients;
          Tensor(w.read()).sub_(w.read().grad() * 0.01);
          return Tensors{loss};
        });
      },
      "zero_grad");
  add("SecondDerivative", [] {
    Variable w = weight("w", {3, 1});
    return Step([w](Tensor x, Tensor) {
      Tensor y = torch::sin(x.matmul(w.read())).sum();
      Tensor first = torch::autograd::grad({y}, {w.read()}, {}, true, true)[0];
      Tensor loss = first.pow(2).sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("GradientOfAnArgument", [] {
    return Step([](Tensor x, Tensor) {
      Tensor a = x.detach().clone().requires_grad_(true);
      return torch::autograd::grad({a.pow(3).sum()}, {a});
    });
  });
  add("HookOnAGradient", [] {
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      Tensor h = x * w.read();
      h.register_hook([](Tensor gradient) { return gradient.clamp(-0.1, 0.1); });
      descend(h.sum(), {w});
      return Tensors{w.read()};
    });
  });
}

void add_sparse_gradient_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add("SparseGradient", [] {
    Variable table = weight("table", {3, 2});
    return Step([table](Tensor, Tensor y) {
      Tensor loss = torch::embedding(table.read(), y, -1, false, /*sparse=*/true).pow(2).sum();
      Tensor gradient = torch::autograd::grad({loss}, {table.read()})[0];
      torch::NoGradGuard no_gradients;
      Tensor(table.read()).add_(gradient, -0.1);
      return Tensors{loss, table.read()};
    });
  });
  add("SparseGradientUsedTwice", [] {
    Variable table = weight("table", {3, 2});
    return Step([table](Tensor, Tensor y) {
      Tensor a = torch::embedding(table.read(), y, -1, false, true),
             b = torch::embedding(table.read(), (y + 1) % 3, -1, false, true);
      Tensor gradient = torch::autograd::grad({(a * b).sum()}, {table.read()})[0];
      return Tensors{gradient.to_dense()};
    });
  });
  add(
      "CoalesceIsRefused",
      [] {
        Variable table = weight("table", {3, 2});
        return Step([table](Tensor, Tensor y) {
          Tensor loss = torch::embedding(table.read(), y, -1, false, true).sum();
          return Tensors{torch::autograd::grad({loss}, {table.read()})[0].coalesce().values()};
        });
      },
      "aten::_coalesce");
}

void add_module_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add("BatchNormWritesItsStatistics", [] {
    Variable mean("mean", torch::zeros({3}), {.trainable = false}),
        variance("variance", torch::ones({3}), {.trainable = false});
    return Step([mean, variance](Tensor x, Tensor) {
      Tensor y = torch::batch_norm(x, {}, {}, mean.read(), variance.read(), true, 0.1, 1e-5, false);
      return Tensors{y, mean.read(), variance.read()};
    });
  });
  add(
      "BatchNormOnTensorsThatAreNotVariablesIsRefused",
      [] {
        Tensor mean = torch::zeros({3}), variance = torch::ones({3});
        return Step([mean, variance](Tensor x, Tensor) {
          return Tensors{torch::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, false)};
        });
      },
      "aten::native_batch_norm");
  add("BatchNormInEvaluationReadsOnly", [] {
    Tensor mean = torch::zeros({3}), variance = torch::ones({3});
    return Step([mean, variance](Tensor x, Tensor) {
      return Tensors{torch::batch_norm(x, {}, {}, mean, variance, false, 0.1, 1e-5, false)};
    });
  });
  add(
      "ParameterThatIsNotAVariableIsRefused",
      [] {
        torch::nn::Linear net(3, 2);
        return Step([net](Tensor x, Tensor) mutable { return Tensors{net(x)}; });
      },
      "tr::track");
  add("TrackedModule", [] {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::BatchNorm1d(4),
                              torch::nn::Linear(4, 3));
    auto variables = track(net);
    return Step([net, variables](Tensor x, Tensor y) mutable {
      Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
      std::vector<Variable> trained;
      for (const Variable& v : variables) {
        if (v.trainable()) trained.push_back(v);
      }
      descend(loss, trained);
      Tensors results{loss};
      for (const Variable& v : variables) results.push_back(v.read());
      return results;
    });
  });
}

}  // namespace

std::vector<Program> gradient_programs() {
  std::vector<Program> list;
  add_variable_programs(list);
  add_autograd_programs(list);
  add_sparse_gradient_programs(list);
  add_module_programs(list);
  return list;
}

}  // namespace trireme
