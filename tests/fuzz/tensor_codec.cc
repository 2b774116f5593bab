// A list of tensors that was read encodes to the same bytes again. The first byte chooses the size
// of the pieces in which it arrives; if that byte is odd, tensors stay scattered over the pieces.
#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/tensor/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] / 2 + 1;
  const trireme::TensorLimits limits = {.max_tensors = 1024, .max_bytes = 1 << 20};
  trireme::TensorReader reader(limits);
  if (data[0] % 2 == 1) reader.scatter_from(64);
  size_t done = 1;
  while (done < size && !reader.done()) {
    const size_t part = std::min(piece, size - done);
    const auto used = reader.read(data + done, part);
    if (!used.ok()) return 0;
    done += *used;
  }
  if (!reader.done()) return 0;
  std::vector<at::Tensor> tensors = reader.take();
  const std::vector<trireme::ScatteredTensor> scattered = reader.take_scattered();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_meta()) continue;
    tensors[i] = scattered[i].gather(tensors[i].sizes(), tensors[i].scalar_type());
  }
  const auto again = trireme::encode_tensors(tensors);
  if (!again.ok() || *again != std::string(reinterpret_cast<const char*>(data) + 1, done - 1)) {
    std::abort();
  }
  return 0;
}
