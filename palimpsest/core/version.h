// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#define PALIMPSEST_VERSION_MAJOR 0
#define PALIMPSEST_VERSION_MINOR 1
#define PALIMPSEST_VERSION_PATCH 0

namespace palimpsest {

/// "0.1.0".
std::string version();
/// "palimpsest 0.1.0 (LibTorch 2.13.0, 2 threads)".
std::string version_text();

}  // namespace palimpsest
