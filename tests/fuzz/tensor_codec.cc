// A list of tensors, cut into pieces of a size that the first byte chooses. What was read has to
// encode to the same bytes again.
#include <cstdlib>
#include <string>

#include "trireme/tensor/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] + 1;
  const trireme::TensorLimits limits = {.max_tensors = 1024, .max_bytes = 1 << 20};
  trireme::TensorReader reader(limits);
  size_t done = 1;
  while (done < size && !reader.done()) {
    const size_t part = std::min(piece, size - done);
    const auto used = reader.read(data + done, part);
    if (!used.ok()) return 0;
    done += *used;
  }
  if (!reader.done()) return 0;
  const auto again = trireme::encode_tensors(reader.take());
  if (!again.ok() || *again != std::string(reinterpret_cast<const char*>(data) + 1, done - 1)) {
    std::abort();
  }
  return 0;
}
