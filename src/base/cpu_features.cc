// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace nibble {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"ref",    "avx2",        "avx_vnni",
                                                    "avx512", "avx512_vbmi", "amx"};

// GCC 12 and clang 14 know no "amx-int8" in __builtin_cpu_supports, so the bits are read here:
// CPUID leaf 7, EDX bits 22 (AMX-BF16), 24 (AMX-TILE) and 25 (AMX-INT8).
bool HasAmx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBits = 1u << 22 | 1u << 24 | 1u << 25;
  if ((d & kBits) != kBits) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0;
}

// AVX-VNNI is read in the same way: CPUID leaf 7, subleaf 1 (where there is one), EAX bit 4.
bool HasAvxVnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;
}

Isa Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kRef;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (!avx512) return HasAvxVnni() ? Isa::kAvxVnni : Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512bitalg")) {
    return Isa::kAvx512;
  }
  return HasBf16() && HasAmx() ? Isa::kAmx : Isa::kAvx512Vbmi;
}

Isa Active() {
  const char* wanted = std::getenv("NIBBLE_ISA");
  if (wanted == nullptr || *wanted == '\0') return DetectedIsa();
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != wanted) continue;
    const Isa isa = static_cast<Isa>(i);
    if (!MachineHas(isa)) {
      FailUsage("NIBBLE_ISA={}: this machine lacks it, and supports {}", wanted,
                IsaName(DetectedIsa()));
    }
    return isa;
  }
  FailUsage("NIBBLE_ISA={}: use {}", wanted, fmt::join(kNames, ", "));
}

}  // namespace

bool HasBf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16");
}

std::string_view IsaName(Isa isa) {
  return kNames[static_cast<size_t>(isa)];
}

Isa DetectedIsa() {
  static const Isa isa = Detect();
  return isa;
}

bool MachineHas(Isa isa) {
  return isa <= DetectedIsa() && (isa != Isa::kAvxVnni || HasAvxVnni());
}

Isa ActiveIsa() {
  static const Isa isa = Active();
  return isa;
}

}  // namespace nibble
