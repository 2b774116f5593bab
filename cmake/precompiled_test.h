// The headers that most tests include, parsed once (cmake/TriremeBuildTime.cmake).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cmake/precompiled_module.h"
