// The headers that most sources of modules include, parsed once (cmake/TriremeBuildTime.cmake).
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
