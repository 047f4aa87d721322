// SPDX-License-Identifier: Apache-2.0
// Which instruction set own kernels use: chosen once, at run time. Every kernel exists for all of them.
#pragma once

#include <string>
#include <vector>

namespace palimpsest::kernels {

enum class Isa { kPlain, kAvx2, kAvx512 };

/// "plain", "avx2" (with FMA), "avx512" (F, BW, DQ, VL).
std::string isa_name(Isa isa);
/// What this machine has, the plainest first.
const std::vector<Isa>& available_isas();
/// The best of them, or the one that the environment's PALIMPSEST_ISA names; a usage error where the machine lacks it.
Isa chosen_isa();

}  // namespace palimpsest::kernels
