// The headers that most tests and examples include, parsed once (cmake/TriremeBuildTime.cmake).
#include <torch/torch.h>

#include "cmake/precompiled_module.h"
