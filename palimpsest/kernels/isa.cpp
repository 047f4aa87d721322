// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/kernels/isa.h"

#include <cstdlib>

#include "palimpsest/core/error.h"

namespace palimpsest::kernels {

std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "";
}

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> found = [] {
    std::vector<Isa> isas = {Isa::kPlain};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back(Isa::kAvx2);
    if (isas.back() == Isa::kAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      isas.push_back(Isa::kAvx512);
#endif
    return isas;
  }();
  return found;
}

Isa chosen_isa() {
  static const Isa chosen = [] {
    const char* wanted = std::getenv("PALIMPSEST_ISA");
    if (wanted == nullptr || *wanted == '\0') return available_isas().back();
    std::string known;
    for (const Isa isa : available_isas()) {
      if (isa_name(isa) == wanted) return isa;
      known += (known.empty() ? "" : ", ") + isa_name(isa);
    }
    throw usage_error(fmt::format("the instruction set \"{}\" cannot be used here", printable(wanted)),
                      "PALIMPSEST_ISA", "this machine has " + known);
  }();
  return chosen;
}

}  // namespace palimpsest::kernels
