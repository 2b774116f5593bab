#include "trireme/train/sigterm.h"

#include <signal.h>

#include <atomic>

#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

// The handler reads `previous_action`, so it is written only while the handler is not installed.
std::atomic<bool> sigterm_received = false;
struct sigaction previous_action;

bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void on_sigterm(int signal, siginfo_t* info, void* context) {
  const bool again = sigterm_received.exchange(true);
  if (!has_handler(previous_action)) {
    if (!again || previous_action.sa_handler == SIG_IGN) return;
    // Blocked while this handler runs, so it is delivered when the handler returns.
    sigaction(signal, &previous_action, nullptr);
    raise(signal);
    return;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else {
    previous_action.sa_handler(signal);
  }
}

struct Watches {
  Mutex mutex;
  int count ABSL_GUARDED_BY(mutex) = 0;

  static Watches& instance() {
    static auto* watches = new Watches;
    return *watches;
  }
};

}  // namespace

SigtermWatch::SigtermWatch() {
  Watches& watches = Watches::instance();
  MutexLock lock(watches.mutex);
  if (watches.count++ > 0) return;
  sigterm_received = false;
  struct sigaction present = {};
  sigaction(SIGTERM, nullptr, &present);
  // The handler is still installed if one of the program had replaced it and put it back.
  if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_sigterm) return;
  previous_action = present;
  struct sigaction action = {};
  action.sa_sigaction = on_sigterm;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(SIGTERM, &action, nullptr);
}

SigtermWatch::~SigtermWatch() {
  Watches& watches = Watches::instance();
  MutexLock lock(watches.mutex);
  if (--watches.count > 0) return;
  struct sigaction present = {};
  sigaction(SIGTERM, nullptr, &present);
  if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_sigterm) {
    sigaction(SIGTERM, &previous_action, nullptr);
  }
}

bool SigtermWatch::received() const {
  return sigterm_received;
}

}  // namespace trireme::internal
