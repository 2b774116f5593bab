// Computes the sum of one to five. A captured function draws a number from an iterator in each
// call. README.md shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>

namespace tr = trireme;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv, tr::Usage{.about = "Adds one to five in this process."});
  tr::make_strategy(tr::resolve(flags), "default");  // an error for one of several workers
  tr::Variable sum("sum", torch::zeros({}, torch::kInt64));
  auto add = tr::function("add", [&](tr::Iterator& numbers) { sum.assign_add(numbers.next()); });

  tr::Iterator numbers = tr::Dataset::range(1, 6).iterator();
  for (int i = 0; i < 5; ++i) add(numbers);
  std::cout << sum.read().item<int64_t>() << '\n';

  try {
    add(numbers);
  } catch (const tr::Error& error) {
    std::cout << tr::error_code_name(error.code()) << ": " << error.what() << '\n';
  }
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
