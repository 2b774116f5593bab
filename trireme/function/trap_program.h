#pragma once

#include <torch/torch.h>

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "trireme/function/variable.h"

// The programs that traps_test.cc runs. The sources traps_*_test.cc list them by subject.
namespace trireme {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Step = std::function<Tensors(Tensor, Tensor)>;

// A small program with one way in which a capture can go wrong.
struct Program {
  std::string name;
  std::function<Step()> make;  // makes the step with fresh state, so that two runs start alike
  std::string refusal;         // text of the error that rejects it; empty if it must replay equal
};

inline void PrintTo(const Program& program, std::ostream* out) {
  *out << program.name;
}

std::vector<Program> memory_programs();
std::vector<Program> operator_programs();
std::vector<Program> gradient_programs();
std::vector<Program> state_programs();

// Appends programs with state of their own to a list.
class AddProgram {
 public:
  explicit AddProgram(std::vector<Program>& list) : list_(list) {}
  void operator()(std::string name, std::function<Step()> make, std::string refusal = "") const {
    list_.push_back({std::move(name), std::move(make), std::move(refusal)});
  }

 private:
  std::vector<Program>& list_;
};

// Appends programs without state to a list.
class AddPureProgram {
 public:
  explicit AddPureProgram(std::vector<Program>& list) : list_(list) {}
  void operator()(std::string name, Step step, std::string refusal = "") const {
    list_.push_back({std::move(name), [step] { return step; }, std::move(refusal)});
  }

 private:
  std::vector<Program>& list_;
};

// Makes a variable with different numbers, some of them negative.
inline Variable weight(const std::string& name, at::IntArrayRef sizes, double scale = 0.1) {
  const int64_t count = c10::multiply_integers(sizes);
  return Variable(name, (torch::arange(count).to(torch::kFloat) * scale - 0.3).view(sizes));
}

// Does one step of gradient descent by hand, as a program may write it.
inline void descend(const Tensor& loss, const std::vector<Variable>& variables) {
  Tensors parameters;
  for (const Variable& variable : variables) parameters.push_back(variable.read());
  const Tensors gradients = torch::autograd::grad({loss}, parameters);
  for (size_t i = 0; i < variables.size(); ++i) variables[i].assign_sub(gradients[i] * 0.1);
}

}  // namespace trireme
