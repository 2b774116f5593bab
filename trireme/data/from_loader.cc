#include "trireme/data/from_loader.h"

#include "trireme/exec/step_generator.h"

namespace trireme::internal {

void call_seeded(uint64_t seed, const std::function<void()>& function) {
  at::Generator generator = make_step_generator(seed, 0);
  const BorrowDefaultGenerator borrowed(generator);
  function();
}

}  // namespace trireme::internal
