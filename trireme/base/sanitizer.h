#pragma once

// Tells under which sanitizer the code is compiled. GCC tells by macros and Clang 16 by features.
// Clang is asked first: headers of libraries define __has_feature for GCC, as 0 for every feature.
#if defined(__clang__)
#if __has_feature(address_sanitizer)
#define TRIREME_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define TRIREME_TSAN
#endif
#else
#if defined(__SANITIZE_ADDRESS__)
#define TRIREME_ASAN
#endif
#if defined(__SANITIZE_THREAD__)
#define TRIREME_TSAN
#endif
#endif

namespace trireme {

// True under AddressSanitizer or ThreadSanitizer, which make a program several times slower.
#if defined(TRIREME_ASAN) || defined(TRIREME_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace trireme
