// SPDX-License-Identifier: Apache-2.0
// The instruction sets of this machine, read from the processor's own feature bits (never from
// model names, which virtual machines mask), and the one that the program may use.
#pragma once

#include <array>
#include <string_view>

namespace nibble {

// Each level includes the ones before it, except that processors with AVX-512 may lack AVX-VNNI.
enum class Isa {
  kRef,         // plain C++
  kAvx2,        // AVX2 + FMA
  kAvxVnni,     // AVX-VNNI (256-bit vpdpbusd): Core from the 12th generation on, Zen 5
  kAvx512,      // AVX-512 F, BW, DQ, VL and VNNI
  kAvx512Vbmi,  // AVX-512 VBMI and BITALG: Ice Lake, Zen 4 and later
  kAmx,         // AMX-INT8 and AMX-BF16, AVX-512 BF16
};

// The levels that the CPU backend has kernels for.
inline constexpr std::array kVectorIsas = {Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512,
                                           Isa::kAvx512Vbmi, Isa::kAmx};

std::string_view IsaName(Isa isa);  // "ref", "avx2", "avx_vnni", "avx512", "avx512_vbmi", "amx"

// Returns whether this machine has AVX-512 BF16: some with AVX-512 do, and all of kAmx.
bool HasBf16();

// Best level of this machine (asks the kernel for AMX state once).
Isa DetectedIsa();

// Returns whether this machine runs the instructions of a level.
bool MachineHas(Isa isa);

// DetectedIsa(), lowered by NIBBLE_ISA, a name above. An unknown or unsupported value throws.
Isa ActiveIsa();

}  // namespace nibble
