#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/collective/call.h"
#include "trireme/collective/mailbox.h"

namespace trireme::internal {

// Returns true if the payload of a received parcel has the dtype and number of elements of `place`.
// A parcel without a payload fits a place without elements.
bool payload_fits(const Parcel& parcel, const at::Tensor& place);
// Copies the payload to `out`, which it fits.
void copy_payload(const Parcel& parcel, const at::Tensor& out);
// Combines `own` with the payload, which fits it, and stores the result in `out`, which may be
// `own`.
void combine_payload(Reduction reduction, const at::Tensor& own, const Parcel& parcel,
                     const at::Tensor& out);

// Stores `own` combined with `received` in `out`, which may be `own`, on this thread.
void combine_blocks(Reduction reduction, const at::Tensor& own, const at::Tensor& received,
                    const at::Tensor& out);

}  // namespace trireme::internal
