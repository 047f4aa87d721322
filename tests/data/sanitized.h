// SPDX-License-Identifier: Apache-2.0
// Whether the address sanitizer is on: it keeps freed memory for a while, so resident bytes say nothing there.
#pragma once

namespace palimpsest::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kAddressSanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool kAddressSanitized = false;
#endif

}  // namespace palimpsest::test
