#include "trireme/capture/eager_mode.h"

#include <atomic>

namespace trireme {
namespace {

std::atomic<bool> eager_mode = false;

}  // namespace

void run_eagerly(bool eagerly) {
  eager_mode = eagerly;
}

bool runs_eagerly() {
  return eager_mode;
}

}  // namespace trireme
