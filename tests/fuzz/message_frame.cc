// A message that was read is written as the same bytes again, whatever the size of the frames in
// which it arrived. The first byte chooses that size.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "trireme/rpc/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (size == 0) return 0;
  const size_t piece = data[0] + 1;
  MessageReader reader(
      {.max_body_bytes = 1 << 20, .tensors = {.max_tensors = 1024, .max_bytes = 1 << 20}});
  for (size_t done = 1; done < size; done += piece) {
    if (!reader.read(data + done, std::min(piece, size - done)).ok()) return 0;
  }
  if (!reader.done()) return 0;
  const Prefix prefix = reader.prefix();
  const bool tensors_follow = data[1 + 6] & 1;  // an empty list need not be written
  Message message = reader.take();
  if (tensors_follow && message.tensors.empty()) return 0;
  auto writer = MessageWriter::make(prefix, std::move(message));
  if (!writer.ok()) std::abort();
  std::string again;
  for (const Piece& part : writer->next_frame(writer->bytes_left())) {
    again += part.tensor.defined()
                 ? std::string(static_cast<const char*>(part.tensor.const_data_ptr()) + part.offset,
                               part.size)
                 : part.bytes;
  }
  if (again != std::string(reinterpret_cast<const char*>(data) + 1, size - 1)) std::abort();
  return 0;
}
