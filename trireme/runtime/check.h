#pragma once

#include <string>
#include <type_traits>

#include "trireme/function/function.h"
#include "trireme/runtime/session.h"

namespace trireme {

// Options of check().
struct CheckOptions {
  // Number of steps to compare; at least 1.
  int steps = 20;
  // Session in which the captured steps run; null for this process.
  Session* session = nullptr;
  // Largest difference that counts as equal: ||captured - eager|| / ||eager|| of one tensor. Dtypes
  // of less than 32 bits may need more.
  double tolerance = 1e-5;
};

// Result of check(). If the function differs from eager code, it describes the first difference.
struct CheckReport {
  // True if no step differs.
  bool equal = true;
  // Number of steps that were compared. Less than asked for if the data of an iterator ended.
  int steps_compared = 0;
  // First step that differs, counted from 0; -1 if none does.
  int step = -1;
  // First object that differs in that step: "result 0", "variable 'w'".
  std::string object;
  // First operator that differs: "operator 'aten::mul.Tensor' (node 3, module 'fc1')". Empty if it
  // is not known.
  std::string op;
  // Difference of `object`, relative to its norm in eager code: ||captured - eager|| / ||eager||.
  // Infinity if shapes or dtypes differ. If all steps are equal, the largest difference found.
  double difference = 0;
  // Likely cause and its remedy.
  std::string cause;

  // Returns the report as text for people.
  std::string to_string() const;
};

// Compares a captured function with its body run as eager code. Both start from the same state and
// run `options.steps` steps on the same arguments. After each step their results and the contents
// of the variables are compared. Stops at the first step that differs and looks for the operator
// and the cause.
//
//   const tr::CheckReport report = tr::check(step, {.steps = 20}, x, y);
//   std::cout << report.to_string() << "\n";
//
// The arguments are the same in all steps, except for the elements of iterators. A function that
// reads its arguments by other means than operators may therefore look equal: check it again with
// other arguments.
//
// Restores the variables (the state of optimizers among them), their gradients, the function's step
// count, LibTorch's default generator, and the iterators among the arguments, also if it throws.
// Graphs that were captured stay. Numbers and objects of the program that are not tensors are
// not restored: the body runs once for each step and, if a step differs, a few times more.
//
// With a session, the captured steps run there, and both sides start from the contents of its
// variables, which are restored too. Variables that the session does not hold yet are created from
// the contents that the program holds, and stay in the session.
//
// Throws the Error of the capture if the function cannot be captured, and everything that the body
// throws. Throws Error if a variable was made in the scope of a strategy that keeps it on servers
// or devices, since the body cannot run as eager code then. No other thread may use the function,
// its variables or other functions meanwhile: eager mode belongs to the process.
template <typename R, typename... Args>
CheckReport check(const Function<R(Args...)>& function, const CheckOptions& options,
                  std::decay_t<Args>... args);

}  // namespace trireme

#include "trireme/runtime/check_inl.h"
