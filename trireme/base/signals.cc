#include "trireme/base/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "trireme/base/executor.h"

namespace trireme {
namespace {

// A signal handler may call only async-signal-safe functions, so ours stores the signal and writes
// a byte into a pipe. A thread reads the pipe and requests the stop.
std::atomic<int> handler_pipe = -1;
std::atomic<int> last_signal = 0;
struct sigaction old_term, old_interrupt;

void on_signal(int signal) {
  last_signal = signal;
  const char byte = 1;
  const int saved = errno;
  (void)!write(handler_pipe, &byte, 1);
  errno = saved;
}

}  // namespace

StopOnSignal::StopOnSignal() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  quit_pipe_ = ends[1];
  handler_pipe = ends[1];
  last_signal = 0;
  thread_ = std::thread([this, fd = ends[0]] {
    set_thread_name("trireme-signals");
    char byte = 0;
    // The byte is 1 for a signal, 0 when the destructor asks the thread to end.
    while (read(fd, &byte, 1) == 1 && byte == 1) source_.request_stop();
    close(fd);
  });
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &old_term);
  sigaction(SIGINT, &action, &old_interrupt);
}

StopOnSignal::~StopOnSignal() {
  sigaction(SIGTERM, &old_term, nullptr);
  sigaction(SIGINT, &old_interrupt, nullptr);
  const char end = 0;
  (void)!write(quit_pipe_, &end, 1);
  thread_.join();
  handler_pipe = -1;
  close(quit_pipe_);
}

int StopOnSignal::signal() const {
  return last_signal;
}

}  // namespace trireme
