#pragma once

namespace trireme::internal {

// Notes SIGTERM instead of ending the process, for as long as an object of this class exists. A
// handler that the program had installed before is called as well. If there was none, the second
// SIGTERM ends the process as usual. A handler that the program installs later replaces this one,
// and the signal is then not noted. Thread-safe; several objects may exist at a time.
class SigtermWatch {
 public:
  SigtermWatch();
  // The last object restores the previous handler, unless the program has replaced this one.
  ~SigtermWatch();

  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;

  // Returns true once the signal has arrived.
  bool received() const;
};

}  // namespace trireme::internal
