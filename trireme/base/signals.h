#pragma once

#include <stop_token>
#include <thread>

namespace trireme {

// While it lives, SIGTERM and SIGINT request a stop instead of ending the process. One at a time in
// a process; the handlers that were there before come back when it is destroyed.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();

  std::stop_token token() const { return source_.get_token(); }
  // The signal that came; 0: none.
  int signal() const;

 private:
  std::stop_source source_;
  int quit_pipe_ = -1;
  std::thread thread_;
};

}  // namespace trireme
