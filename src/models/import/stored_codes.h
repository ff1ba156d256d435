// SPDX-License-Identifier: Apache-2.0
// Linears that other programs quantized, in Nibble's own format: the weights mean the same numbers.
//
//   GPTQ (gptq, gptq_v2): qweight [K * b / 32, N], qzeros [G, N * b / 32], scales [G, N], g_idx [K]
//   AWQ (gemm): qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]
//
//   compressed-tensors (pack-quantized): weight_packed [N, K * b / 32], weight_scale [N, G],
//   weight_zero_point [N * b / 32, G], weight_g_idx [K]; (int-quantized): weight [N, K] of bytes
//   MXFP4: any linear of that type, whatever the config says
//
// Bits and groups follow from the shapes, those of compressed-tensors among the config's; zeros
// have as many bits. The config names the layout and says that columns have an order (desc_act,
// actorder), without which a linear is not read.
//
// Layouts: github.com/ModelCloud/GPTQModel, casper-hansen/AutoAWQ, vllm-project/compressed-tensors.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/packed_linear.h"
#include "io/safetensors.h"

namespace nibble {

class StoredCodes {
 public:
  // Reads "quantization_config"; throws naming a method or a variant that is not read.
  StoredCodes(const Json& config, const std::string& where);

  std::string_view name() const;  // "GPTQ", "AWQ", "compressed-tensors"
  // Returns whether the store has codes of this linear, whatever else it has.
  bool Has(const TensorStore& store, const std::string& linear) const;
  // Linear [rows, cols] without its bias; `used` gets the names of its tensors. Columns whose
  // groups are spread (act order) are put together, and the input is gathered likewise. Of groups,
  // scales that fp16 cannot hold are rounded to it: fp32 ones, and those below 6e-5.
  PackedLinear Read(const TensorStore& store, const std::string& linear, int64_t rows, int64_t cols,
                    std::set<std::string>& used) const;

  struct Layout;

 private:
  const Layout* layout_;
  bool ordered_ = false;
  std::vector<int> widths_;  // of codes, in bits
};

// MXFP4 [rows, cols] in GGUF's order of bytes (OCP Microscaling formats, 2023) as weights of E2M1
// in groups of 32. Their scales, powers of two, are exact in fp16 from 2^-24 on; groups of smaller
// ones are rounded to that, larger ones than 2^15 throw naming `where`.
PackedWeights CodesOfMxfp4(const Tensor& blocks, const std::string& where);

}  // namespace nibble
