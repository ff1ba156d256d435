// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this machine has, from the processor's own feature bits (never from model
// names, which virtual machines mask), and which one the program may use.
#pragma once

#include <string_view>

namespace nibble {

// Each level includes the ones before it.
enum class Isa {
  kRef,         // plain C++
  kAvx2,        // AVX2 + FMA
  kAvx512,      // AVX-512 F, BW, DQ, VL and VNNI
  kAvx512Vbmi,  // AVX-512 VBMI and BITALG: Ice Lake, Zen 4 and later
  kAmx,         // AMX-INT8 and AMX-BF16, AVX-512 BF16
};

std::string_view IsaName(Isa isa);  // "ref", "avx2", "avx512", "avx512_vbmi", "amx"

// AVX-512 BF16, which some machines of kAvx512 have and all of kAmx.
bool HasBf16();

// Best level of this machine (asks the kernel for AMX state once).
Isa DetectedIsa();

// DetectedIsa(), lowered by NIBBLE_ISA, a name above. An unknown or unsupported value throws.
Isa ActiveIsa();

}  // namespace nibble
