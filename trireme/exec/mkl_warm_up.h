#pragma once

namespace trireme::internal {

// Calls each of MKL's vector functions once, on one thread. LibTorch calls them from several
// threads at once, and MKL chooses a function's code on its first call without a lock: now and then
// a process's first `tanh` of some size came out of a low-accuracy kernel, off by 1e-5, in one
// thread's share of the tensor (pytorch issue 188792). Done once; cheap afterwards.
void warm_up_mkl();

}  // namespace trireme::internal
