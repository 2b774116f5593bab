#pragma once

namespace trireme {

// Sets the number of threads that operators of the calling thread use. at::set_num_threads() would
// also change the number that threads which start later begin with.
void set_operator_threads(int threads);

}  // namespace trireme
