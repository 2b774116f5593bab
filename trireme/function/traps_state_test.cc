// Programs with state outside of the graph: their own, random numbers, workspaces of layers.
#include <torch/torch.h>

#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/function/trap_program.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace {

void add_frozen_state_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add(
      "FrozenCounterIsRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step(
            [counter](Tensor x, Tensor) { return Tensors{x / static_cast<double>(++*counter)}; });
      },
      "two captures differ");
  add(
      "FrozenCounterAsATensorIsRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step([counter](Tensor x, Tensor) {
          return Tensors{x / torch::full({1}, static_cast<double>(++*counter))};
        });
      },
      "two captures differ");
  add(
      "FrozenCounterInAVectorIsRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step([counter](Tensor x, Tensor) {
          ++*counter;
          return Tensors{x * torch::tensor(std::vector<float>{1, 2, static_cast<float>(*counter)})};
        });
      },
      "two captures differ");
  add(
      "OperatorsThatVaryBetweenRunsAreRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step([counter](Tensor x, Tensor) {
          return Tensors{++*counter % 2 == 0 ? x.exp() : x.exp().sin()};
        });
      },
      "two captures differ");
  add(
      "RandomNumbersOfTheCLibraryAreRefused",
      [] { return Step([](Tensor x, Tensor) { return Tensors{x * (rand() % 100000)}; }); },
      "two captures differ");
}

void add_escaping_tensor_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add(
      "ResultKeptByTheProgramIsRefused",
      [] {
        auto last = std::make_shared<Tensor>();
        return Step([last](Tensor x, Tensor) {
          *last = x + 1;
          return Tensors{x * 2};
        });
      },
      "outlives the function");
  add(
      "MemberAssignedInTheStepIsRefused",
      [] {
        auto hidden = std::make_shared<Tensor>(torch::zeros({4, 3}));
        return Step([hidden](Tensor x, Tensor) {
          *hidden = *hidden * 0.5 + x;
          return Tensors{*hidden * 1};
        });
      },
      "outlives the function");
  add(
      "ReplacedMemoryOfAVariableIsRefused",
      [] {
        Variable w = weight("w", {3});
        return Step([w](Tensor x, Tensor) {
          Tensor a = x * w.read();
          w.read().set_data(w.read().data() * 2);
          return Tensors{a};
        });
      },
      "replaced its memory");
  add(
      "VariableReshapedIsRefused",
      [] {
        Variable w("w", torch::ones({4, 3}), {.trainable = false});
        return Step([w](Tensor x, Tensor) {
          Tensor(w.read()).t_();
          return Tensors{x * 1};
        });
      },
      "shape of variable");
}

void add_random_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add("RandomNumbersComeFromTheStepsGenerator", [] {
    return Step([](Tensor x, Tensor) {
      return Tensors{x + torch::rand({4, 3}),
                     torch::randn_like(x),
                     torch::randint(0, 9, {5}),
                     torch::randperm(7),
                     torch::bernoulli(torch::sigmoid(x)),
                     torch::dropout(x, 0.5, true),
                     x.clone().normal_(),
                     x.clone().uniform_(),
                     torch::multinomial(torch::softmax(x, 1), 1),
                     torch::normal(0., 1., {3})};
    });
  });
  add("UnusedRandomNumbersStillCount", [] {
    return Step([](Tensor x, Tensor) {
      torch::rand({3});
      Tensor(torch::rand({2})).mul_(2);
      return Tensors{x * torch::rand({3})};
    });
  });
  add("DropoutInAutograd", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor loss = torch::dropout(x.matmul(w.read()), 0.3, true).pow(2).sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add(
      "SeedingInsideIsRefused",
      [] {
        return Step([](Tensor x, Tensor) {
          torch::manual_seed(1);
          return Tensors{x + torch::rand({3})};
        });
      },
      "seeds LibTorch's default generator");
  add(
      "GeneratorOfTheProgramIsRefused",
      [] {
        torch::Generator own = at::detail::createCPUGenerator(5);
        return Step([own](Tensor x, Tensor) { return Tensors{x + torch::rand({3}, own)}; });
      },
      "aten::rand.generator");
}

void add_composite_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  add("NestedFunctions", [] {
    Variable w = weight("w", {3});
    auto inner = function("inner", [w](const Tensor& x) {
      w.assign_add(x.sum(0));
      return x * w.read();
    });
    auto outer = function("outer", [inner](const Tensor& x) { return inner(x) + inner(x * 2); });
    return Step([outer, w](Tensor x, Tensor) { return Tensors{outer(x), w.read()}; });
  });
  add("AttentionComparesATensorWithItself", [] {
    torch::manual_seed(5);
    torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(4, 2));
    auto variables = track(attention);
    return Step([attention, variables](Tensor x, Tensor) mutable {
      Tensor q = torch::cat({x, x.narrow(1, 0, 1)}, 1).unsqueeze(1);
      auto [out, weights] = attention(q, q, q);
      Tensor loss = out.pow(2).sum();
      descend(loss, {variables[0], variables[1]});
      return Tensors{loss, out, weights, variables[0].read()};
    });
  });
  add("LstmNeedsItsWorkspace", [] {
    torch::manual_seed(5);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2));
    auto variables = track(lstm);
    return Step([lstm, variables](Tensor x, Tensor) mutable {
      Tensor loss = std::get<0>(lstm(x.unsqueeze(1))).pow(2).sum();
      descend(loss, variables);
      return Tensors{loss, variables[0].read(), variables.back().read()};
    });
  });
  add("EmbeddingBag", [] {
    Variable table = weight("table", {3, 4});
    return Step([table](Tensor, Tensor y) {
      Tensor offsets = torch::tensor(std::vector<int64_t>{0, 2});
      Tensor loss = std::get<0>(torch::embedding_bag(table.read(), y, offsets)).pow(2).sum();
      descend(loss, {table});
      return Tensors{loss, table.read()};
    });
  });
  add("UserDefinedAutogradFunction", [] {
    struct Twice : torch::autograd::Function<Twice> {
      static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
        context->save_for_backward({x});
        return x * x;
      }
      static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::tensor_list gradients) {
        return {gradients[0] * context->get_saved_variables()[0] * 2};
      }
    };
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      Tensor loss = Twice::apply(x * w.read()).sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
}

}  // namespace

std::vector<Program> state_programs() {
  std::vector<Program> list;
  add_frozen_state_programs(list);
  add_escaping_tensor_programs(list);
  add_random_programs(list);
  add_composite_programs(list);
  return list;
}

}  // namespace trireme
