// SPDX-License-Identifier: Apache-2.0
// Names for the fp32 vectors of one instruction set, and for integers that go with them.
#include <cstdint>

#if defined(NIBBLE_CPU_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CPU_LANES_INL_H
#undef NIBBLE_CPU_LANES_INL_H
#else
#define NIBBLE_CPU_LANES_INL_H
#endif

#include <hwy/highway.h>

namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
using DB = hn::Rebind<uint8_t, DF>;
constexpr int64_t kLanes = HWY_MAX_BYTES / sizeof(float);
static_assert(kLanes == 8 || kLanes == 16, "written for AVX2 and AVX-512");

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu

#endif  // include guard per target
