// SPDX-License-Identifier: Apache-2.0
// Tests every format, quantized and evaluated: fast kernels against the values that their codes
// mean.
#include "base/cpu_features.h"
#include "tests/e2e_testing.h"

namespace nibble {
namespace {

struct Formats {
  const char* name;
  const char* options;  // separated by spaces
};

// The instruction sets of this machine that have kernels; under the sanitizers only the largest.
// AMX is left out: it rounds queries and probabilities to bf16, which moves 4-bit codes everywhere.
// Its kernels are compared in backends/, and as a whole model by InstructionSetsAgree.
std::vector<Isa> KernelSets() {
  std::vector<Isa> sets = {std::min(ActiveIsa(), Isa::kAvx512)};
#ifndef NIBBLE_SLOW_BUILD
  for (const Isa isa : {Isa::kAvxVnni, Isa::kAvx2}) {
    if (sets[0] > isa && MachineHas(isa)) sets.push_back(isa);
  }
#endif
  return sets;
}

class EveryFormat : public EndToEnd, public testing::WithParamInterface<Formats> {};

TEST_P(EveryFormat, QuantizesAndEvaluates) {
  Quantize("out", Words(GetParam().options));
  // Compares fast kernels with decoded values in fp32. Another order of fp32 sums now and then
  // moves a code, which changes all later tokens: at worst the two are different roundings of one
  // model, no further from each other than from it, and neither worse. A wrong kernel is worse by
  // as much as quantization, or by whole nats.
  const Json source = Eval("kl", Path("out"), {"--reference", small_});
  const double quantization = source["kl_mean"];
  const double loss = std::max(0.0, source["loss_difference"].get<double>());
  for (const Isa isa : KernelSets()) {
    const Json r = Eval("kl", Path("out"), {"--reference", Path("out"), "--decoded"},
                        {fmt::format("NIBBLE_ISA={}", IsaName(isa))});
    EXPECT_TRUE(std::isfinite(r["perplexity"].get<double>()));
    EXPECT_TRUE(std::isfinite(r["reference_perplexity"].get<double>()));
    EXPECT_LT(r["kl_mean"], quantization) << IsaName(isa);
    // The log-likelihood ratio of two texts' tokens has a variance of 2 KL each.
    const double kl = r["kl_mean"], tokens = r["tokens"];
    EXPECT_LT(r["loss_difference"], loss / 4 + 5 * std::sqrt(2 * kl / tokens)) << IsaName(isa);
  }
}

// Every number of bits, both symmetries, every group and rotation at least once.
INSTANTIATE_TEST_SUITE_P(
    Table, EveryFormat,
    testing::Values(
        Formats{"W4A4Asym", "--rounding rtn --w-asym --a-asym --group 64 --kv-group 32"},
        Formats{"W3Random",
                "--rounding rtn --rotation random --w-bits 3 --w-group 128 --a-bits 8 "
                "--k-bits 3 --v-bits 4"},
        Formats{"W4TwoLevel",
                "--rounding rtn --a-bits 8 --group 32 --two-level --w-asym --rotation none"},
        Formats{"W4Gptq",
                "--act-order --gptaq 0.5 --calib-quantized --calib-windows 2 "
                "--context 96"},
#ifndef NIBBLE_SLOW_BUILD
        Formats{"W2",
                "--rounding rtn --w-bits 2 --w-asym --a-bits 16 --k-bits 2 --v-bits 3 "
                "--group 32"},
        Formats{"W4Unrotated", "--rounding rtn --rotation none"},
        Formats{"W5A6", "--rounding rtn --w-bits 5 --a-bits 6 --k-bits 5 --v-bits 6"},
        Formats{"W6A4",
                "--rounding rtn --w-bits 6 --w-group 128 --a-group 32 --k-bits 6 "
                "--v-bits 7 --kv-sym"},
        Formats{"W7", "--rounding rtn --w-bits 7 --w-asym --a-bits 16 --k-bits 7 --v-bits 8"},
        Formats{"W8A8",
                "--rounding rtn --w-bits 8 --w-asym --a-bits 8 --a-asym --k-bits 8 "
                "--v-bits 16"},
        Formats{"W16A4", "--rotation none --w-bits 16 --k-bits 16 --v-bits 2"},
        Formats{"W3Gptq",
                "--w-bits 3 --w-asym --w-group 128 --a-bits 16 --kv-bits 16 "
                "--calib-windows 2 --context 96"},
#endif
        Formats{"Sparse", "--recipe quik --sparse 2:4 --calib-windows 2 --context 96"},
        Formats{"SparseGroups", "--rounding rtn --sparse 2:4 --w-asym --w-group 32 --a-bits 8"},
        Formats{"Lattice", "--recipe quipsharp --output-transforms --calib-windows 2 --context 96"},
        Formats{"Lattice3A8", "--rounding rtn --codebook e8p --w-bits 3 --a-bits 8"},
        Formats{"HalfIntegers",
                "--recipe quipsharp --codebook half-integer --rotation kronecker "
                "--calib-windows 2 --context 96"},
        Formats{"Fourier",
                "--recipe quipsharp --rotation fourier --output-transforms --calib-windows 2 "
                "--context 96"},
        Formats{"Rules",
                "--rounding rtn --rule o_proj:w-bits=16 --rule layers.1:a-bits=8 "
                "--rule layers.2.mlp:w-bits=3,w-group=32,w-asym"},
        Formats{"W4A8Kv4", "--rounding rtn --a-bits 8 --a-group 128 --kv-group 64"}),
    [](const auto& format) { return format.param.name; });

}  // namespace
}  // namespace nibble
