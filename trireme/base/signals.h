#pragma once

#include <stop_token>
#include <thread>

namespace trireme {

// Turns SIGTERM and SIGINT into a stop request, instead of the end of the process, for as long as
// it exists. The destructor restores the previous handlers. At most one may exist in a process at a
// time. token() and signal() are thread-safe.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();

  std::stop_token token() const { return source_.get_token(); }
  // Returns the last signal received, or 0 if there was none.
  int signal() const;

 private:
  std::stop_source source_;
  int quit_pipe_ = -1;
  std::thread thread_;
};

}  // namespace trireme
