#include "trireme/tensor/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "trireme/base/sanitizer.h"

// Compilers do not report streaming stores to ThreadSanitizer.
#if defined(__SSE2__) && !defined(TRIREME_TSAN)
#include <emmintrin.h>
#define TRIREME_STREAMS
#endif

namespace trireme {

#ifdef TRIREME_STREAMS

void stream_copy(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  const auto copy = [&](size_t part) {
    std::memcpy(target, source, part);
    target += part;
    source += part;
    bytes -= part;
  };
  copy(std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine));
  // Copy a cache line at a time: the processor combines its four stores into one write to memory.
  for (; bytes >= kLine; bytes -= kLine, target += kLine, source += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(source);
    auto* out = reinterpret_cast<__m128i*>(target);
    const __m128i first = _mm_loadu_si128(in), second = _mm_loadu_si128(in + 1),
                  third = _mm_loadu_si128(in + 2), fourth = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, first);
    _mm_stream_si128(out + 1, second);
    _mm_stream_si128(out + 2, third);
    _mm_stream_si128(out + 3, fourth);
  }
  copy(bytes);
  // Streaming stores are weakly ordered; complete them before another thread is told of the bytes.
  _mm_sfence();
}

#else

void stream_copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace trireme
