#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "absl/status/status.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/tensor/scattered_tensor.h"

namespace trireme {

// A change of one variable, or of one shard on its server: of all rows or of the rows in `ids`.
struct Update {
  enum class Kind {
    kAdd,       // adds `values`
    kAssign,    // overwrites with `values`
    kGradient,  // lets the variable's optimizer apply `values` as a gradient
  };

  Kind kind = Kind::kAdd;
  at::Tensor ids;             // int64 row ids, which may repeat; undefined for the whole variable
  at::Tensor values;          // on the meta device if the bytes are in `scattered`
  ScatteredTensor scattered;  // bytes of the values in the pieces in which they arrived
};

// Returns the error for a push that names a variable twice.
inline absl::Status named_twice(Origin variable) {
  return make_status(ErrorCode::kInvalidArgument,
                     "the push names it twice, but changes a variable only once; add the two "
                     "updates, or push them one after the other",
                     std::move(variable));
}

}  // namespace trireme
