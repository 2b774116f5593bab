#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <string>

namespace trireme::internal {

// Finds modules of torch::nn with dropout that the calling thread calls, but that nobody watches: a
// captured function would not notice their train() and eval(), since the mode is a flag in C++ that
// no operator shows. In evaluation mode such a module calls no operator below autograd, so the
// public operators are observed instead.
//
// One object per thread at a time. Must be destroyed on the thread that made it.
class DropoutWatch {
 public:
  using IsKnown = std::function<bool(double rate, bool training)>;

  // `is_known` returns true if a module with this rate and mode is watched.
  explicit DropoutWatch(IsKnown is_known);
  ~DropoutWatch();

  DropoutWatch(const DropoutWatch&) = delete;
  DropoutWatch& operator=(const DropoutWatch&) = delete;

  // Returns the name of the first unknown module that was called: "Dropout"; empty if there is
  // none.
  const std::string& unknown_module() const { return unknown_; }

 private:
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function);

  const IsKnown is_known_;
  at::CallbackHandle handle_;
  std::string unknown_;
};

}  // namespace trireme::internal
