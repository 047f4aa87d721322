// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/version.h"

#include <fmt/format.h>
#include <torch/version.h>

#include "palimpsest/core/threads.h"

namespace palimpsest {

std::string version() {
  return fmt::format("{}.{}.{}", PALIMPSEST_VERSION_MAJOR, PALIMPSEST_VERSION_MINOR, PALIMPSEST_VERSION_PATCH);
}
std::string version_text() {
  return fmt::format("palimpsest {} (LibTorch {}, {} threads)", version(), TORCH_VERSION, thread_count());
}

}  // namespace palimpsest
