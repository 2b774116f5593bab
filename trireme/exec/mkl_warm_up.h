#pragma once

namespace trireme::internal {

// Calls each of MKL's vector functions once, on one thread, to work around a race. LibTorch calls
// these functions from several threads at once, and MKL selects a function's code on its first call
// without a lock. Now and then, one thread's share of a process's first `tanh` of some size was
// computed by a low-accuracy kernel and was off by 1e-5 (pytorch issue 188792). The first call does
// the work; later calls are cheap. Thread-safe.
void warm_up_mkl();

}  // namespace trireme::internal
