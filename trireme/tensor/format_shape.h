#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trireme {

// Returns a shape as messages show it: "[8, 4]", and "[]" for a single number.
inline std::string format_shape(c10::ArrayRef<int64_t> sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

}  // namespace trireme
