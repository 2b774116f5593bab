#pragma once

namespace trireme {

// True if the test runs under AddressSanitizer or ThreadSanitizer, which make it several times
// slower. GCC tells by a macro and Clang 16 by a feature. The macro is asked first: headers of
// libraries define __has_feature for GCC, where it is 0 for every feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__clang__)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace trireme
