// What most tests include, parsed once (cmake/TriremePrecompiled.cmake).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cmake/precompiled_module.h"
