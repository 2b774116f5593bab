#include "trireme/tensor/operator_threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace trireme {

// OpenMP and MKL keep a number for each thread. LibTorch brings both, but not their headers.
void set_operator_threads(int threads) {
  // The first call in a thread sets its number to that of the process, so it comes first.
  if (at::get_num_threads() == threads) return;
  using SetOpenMp = void (*)(int);
  using SetMkl = int (*)(int);
  static const auto set_openmp =
      reinterpret_cast<SetOpenMp>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  static const auto set_mkl =
      reinterpret_cast<SetMkl>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
  if (set_openmp == nullptr) return at::set_num_threads(threads);
  set_openmp(threads);
  if (set_mkl != nullptr) set_mkl(threads);
}

}  // namespace trireme
