// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/gemm/kernel_table.h"

namespace nibble::cpu {
namespace {

constexpr Isa kVbmi = Isa::kAvx512Vbmi;

// clang-format off
constexpr Kernel kTable[] = {
    // name                       isa            bits     tokens          k_step gemm                   gemv                       tiles  form
    {"amx_gemm_u8s8",             Isa::kAmx,     0,       0,              64,    amx_gemm_u8s8,         nullptr,                   true},
    {"avx512_gemv_u4s8",          Isa::kAvx512,  4,       kMaxGemvTokens, 8,     nullptr,               avx512_gemv_u4s8,          false},
    {"avx512_gemv_u4s8_levels",   Isa::kAvx512,  4,       kMaxGemvTokens, 8,     nullptr,               avx512_gemv_u4s8_levels,   false, Form::kLevels},
    {"avx512_gemv_u8s8",          Isa::kAvx512,  8,       kMaxGemvTokens, 8,     nullptr,               avx512_gemv_u8s8,          false},
    {"avx512_gemv_f4s8",          Isa::kAvx512,  4,       kMaxGemvTokens, 8,     nullptr,               avx512_gemv_f4s8,          false, Form::kFloats},
    {"avx512_gemv_p2s8",          kVbmi,         2,       kGemvRows,      32,    nullptr,               avx512_gemv_p2s8,          false, Form::kCodewords},
    {"avx512_gemv_p3s8",          kVbmi,         3,       kGemvRows,      32,    nullptr,               avx512_gemv_p3s8,          false, Form::kCodewords},
    {"avx512_gemv_p4s8",          kVbmi,         4,       kGemvRows,      32,    nullptr,               avx512_gemv_p4s8,          false, Form::kCodewords},
    {"avx2_gemv_p2s8",            Isa::kAvx2,    2,       4,              32,    nullptr,               avx2_gemv_p2s8,            false, Form::kCodewords},
    {"avx2_gemv_p3s8",            Isa::kAvx2,    3,       4,              32,    nullptr,               avx2_gemv_p3s8,            false, Form::kCodewords},
    {"avx2_gemv_p4s8",            Isa::kAvx2,    4,       4,              32,    nullptr,               avx2_gemv_p4s8,            false, Form::kCodewords},
    {"avx512_gemm_u8s8",          Isa::kAvx512,  0,       0,              8,     avx512_gemm_u8s8,      nullptr,                   false},
    {"avx_vnni_gemv_u4s8",        Isa::kAvxVnni, 4,       kMaxGemvTokens, 8,     nullptr,               avx_vnni_gemv_u4s8,        false},
    {"avx_vnni_gemv_u4s8_levels", Isa::kAvxVnni, 4,       kMaxGemvTokens, 8,     nullptr,               avx_vnni_gemv_u4s8_levels, false, Form::kLevels},
    {"avx_vnni_gemv_u8s8",        Isa::kAvxVnni, 8,       kMaxGemvTokens, 8,     nullptr,               avx_vnni_gemv_u8s8,        false},
    {"avx_vnni_gemv_f4s8",        Isa::kAvxVnni, 4,       kMaxGemvTokens, 8,     nullptr,               avx_vnni_gemv_f4s8,        false, Form::kFloats},
    {"avx_vnni_gemm_u8s8",        Isa::kAvxVnni, 0,       0,              8,     avx_vnni_gemm_u8s8,    nullptr,                   false},
    {"avx2_gemv_u4s8",            Isa::kAvx2,    4,       kMaxGemvTokens, 8,     nullptr,               avx2_gemv_u4s8,            false},
    {"avx2_gemv_u4s8_levels",     Isa::kAvx2,    4,       kMaxGemvTokens, 8,     nullptr,               avx2_gemv_u4s8_levels,     false, Form::kLevels},
    {"avx2_gemv_u8s8",            Isa::kAvx2,    8,       kMaxGemvTokens, 8,     nullptr,               avx2_gemv_u8s8,            false},
    {"avx2_gemv_f4s8",            Isa::kAvx2,    4,       kMaxGemvTokens, 8,     nullptr,               avx2_gemv_f4s8,            false, Form::kFloats},
    {"avx2_gemm_u4s8",            Isa::kAvx2,    4,       0,              8,     avx2_gemm_u4s8,        nullptr,                   false},
    {"avx2_gemm_u4s8_levels",     Isa::kAvx2,    4,       0,              8,     avx2_gemm_u4s8_levels, nullptr,                   false, Form::kLevels},
    {"avx2_gemm_f4s8",            Isa::kAvx2,    4,       0,              8,     avx2_gemm_f4s8,        nullptr,                   false, Form::kFloats},
    {"avx2_gemm_u8s8",            Isa::kAvx2,    0,       0,              8,     avx2_gemm_u8s8,        nullptr,                   false},
    {"scalar_gemm_u8s8",          Isa::kRef,     0,       0,              8,     scalar_gemm_u8s8,      nullptr,                   false},
    {"amx_gemm_bf16",             Isa::kAmx,     kValues, 0,              0,     nullptr,               nullptr,                   true},
    {"avx512_gemm_f32",           Isa::kAvx512,  kValues, 0,              0,     nullptr,               nullptr,                   false},
    {"avx2_gemm_f32",             Isa::kAvx2,    kValues, 0,              0,     nullptr,               nullptr,                   false},
};
// clang-format on

}  // namespace

bool Kernel::Runs(const IntPanels& weights, int64_t tokens) const {
  return (bits == 0 || (bits == weights.bits && form == weights.form())) &&
         (max_tokens == 0 || weights.sum_rows(tokens) <= max_tokens) &&
         weights.group_cols % k_step == 0;
}

std::span<const Kernel> Kernels() {
  return kTable;
}

const Kernel& ChooseKernel(Isa isa, const IntPanels& weights, int64_t tokens) {
  const bool tiles = TakesTiles(isa, weights.sum_rows(tokens));
  for (const Kernel& kernel : kTable) {
    if (kernel.tiles && !tiles) continue;
    if (kernel.isa <= isa && kernel.Runs(weights, tokens)) return kernel;
  }
  NIBBLE_CHECK(false, "groups of {} inputs", weights.group_cols);
  __builtin_unreachable();
}

const Kernel& ValueKernel(Isa isa) {
  for (const Kernel& kernel : kTable) {
    if (kernel.isa <= isa && kernel.bits == kValues) return kernel;
  }
  NIBBLE_CHECK(false, "{}", IsaName(isa));
  __builtin_unreachable();
}

KernelUse KernelFor(Isa isa, const ProductFormat& product, int64_t tokens) {
  const FormatSpec &w = product.weights, &a = product.activations;
  if (!w.quantized() || a.bits > 16) {
    return {ValueKernel(isa).name, InsteadText(product, {.bits = kValues})};
  }
  const IntPanels panels = PanelLayout(w, 1, product.cols, a);
  return {ChooseKernel(isa, panels, tokens).name,
          InsteadText(product, {.bits = panels.bits, .levels = true})};
}

}  // namespace nibble::cpu
