// SPDX-License-Identifier: Apache-2.0
#include "models/import/stored_codes.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "base/half.h"
#include "base/thread_pool.h"
#include "tensor/e2m1.h"

namespace nibble {

struct StoredCodes::Layout {
  std::string_view name, method;
  std::string_view variant_key, variant;          // of quantization_config
  std::string_view codes, zeros, scales, groups;  // suffixes of the tensors' names
  bool inputs_first = true;                       // [K, N] and [G, N]; else [N, K] and [N, G]
  // Codes fill 32-bit words in a stream along rows of these matrices, else along columns.
  bool codes_along_rows = false, zeros_along_rows = true;
  bool awq_order = false;
  bool zeros_less_one = false;  // as AutoGPTQ stored them
  bool bytes = false;           // codes are bytes of two's complement, not streams
  bool may_lack_zeros = false;
};

namespace {

using Layout = StoredCodes::Layout;

constexpr Layout kGptq = {.name = "GPTQ",
                          .method = "gptq",
                          .variant_key = "checkpoint_format",
                          .variant = "gptq",
                          .codes = ".qweight",
                          .zeros = ".qzeros",
                          .scales = ".scales",
                          .groups = ".g_idx",
                          .zeros_less_one = true};

constexpr Layout GptqV2() {
  Layout layout = kGptq;
  layout.variant = "gptq_v2";
  layout.zeros_less_one = false;
  return layout;
}

constexpr Layout kPackQuantized = {.name = "compressed-tensors",
                                   .method = "compressed-tensors",
                                   .variant_key = "format",
                                   .variant = "pack-quantized",
                                   .codes = ".weight_packed",
                                   .zeros = ".weight_zero_point",
                                   .scales = ".weight_scale",
                                   .groups = ".weight_g_idx",
                                   .inputs_first = false,
                                   .codes_along_rows = true,
                                   .zeros_along_rows = false,
                                   .may_lack_zeros = true};

constexpr Layout IntQuantized() {
  Layout layout = kPackQuantized;
  layout.variant = "int-quantized";
  layout.codes = ".weight";
  layout.bytes = true;
  return layout;
}

constexpr Layout kLayouts[] = {kGptq,
                               GptqV2(),
                               {.name = "AWQ",
                                .method = "awq",
                                .variant_key = "version",
                                .variant = "gemm",
                                .codes = ".qweight",
                                .zeros = ".qzeros",
                                .scales = ".scales",
                                .groups = ".g_idx",
                                .codes_along_rows = true,
                                .awq_order = true},
                               kPackQuantized,
                               IntQuantized()};

// Integers of `bits` bits [rows, cols] in words or bytes, as they are stored.
class Codes {
 public:
  // Throws unless the tensor holds such a matrix for one of `widths`: a few columns may fill as
  // many words with codes of one width as of another. less_one: 1 was taken from each, of words as
  // a whole where the words hold whole codes.
  Codes(const Tensor& words, int64_t rows, int64_t cols, bool along_rows, bool less_one,
        std::span<const int> widths, const Layout& layout, const std::string& where)
      : data_(words.data), cols_(cols), along_rows_(along_rows), layout_(layout) {
    if (layout.bytes && words.dtype == DType::kI8 && words.shape == std::vector{rows, cols}) {
      bits_ = 8;
    } else if (!layout.bytes && words.dtype == DType::kI32 && words.shape.size() == 2) {
      const int64_t length = along_rows ? cols : rows;
      for (const int bits : widths) {
        const int64_t filled = (length * bits + 31) / 32;
        const std::vector<int64_t> shape = {along_rows ? rows : filled, along_rows ? filled : cols};
        if (words.shape == shape) bits_ = bits;
      }
      words_ = words.shape[1];
      if (less_one && bits_ > 0) {
        plus_ = 32 % bits_ != 0;
        if (plus_ == 0) word_plus_ = UINT32_MAX / ((1u << bits_) - 1);  // 0x11111111 of 4 bits
      }
    }
    if (bits_ > 0) return;
    Fail("{} is {} {}; {} ({}) stores no {} x {} matrix of codes so", where, DTypeName(words.dtype),
         ShapeText(words.shape), layout.name, layout.variant, rows, cols);
  }

  int bits() const { return bits_; }
  // The code at (row, col) in two's complement: -2^(bits-1) is the lowest.
  int32_t At(int64_t row, int64_t col) const {
    if (layout_.bytes) return static_cast<int8_t>(data_[row * cols_ + col]);
    // The place in a word of AWQ's that each of eight columns has.
    constexpr int kPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};
    int64_t i = along_rows_ ? col : row;
    if (layout_.awq_order) i += kPlaces[i % 8] - i % 8;
    const int64_t bit = i * bits_, word = bit / 32;
    uint64_t window = Word(row, col, word);
    if (bit % 32 + bits_ > 32) window |= uint64_t{Word(row, col, word + 1)} << 32;
    const uint64_t code = ((window >> bit % 32) + plus_) & ((1u << bits_) - 1);
    return static_cast<int32_t>(code) - (1 << (bits_ - 1));
  }

 private:
  uint32_t Word(int64_t row, int64_t col, int64_t word) const {
    const int64_t at = along_rows_ ? row * words_ + word : word * words_ + col;
    uint32_t value = 0;
    std::memcpy(&value, data_ + at * 4, 4);
    return value + word_plus_;
  }

  const std::byte* data_;
  int64_t cols_, words_ = 0;
  bool along_rows_;
  const Layout& layout_;
  int bits_ = 0;
  uint32_t plus_ = 0, word_plus_ = 0;
};

// Columns group by group, or empty where they are so already. `index`: each column's group.
std::vector<int32_t> GroupOrder(const Tensor& index, int64_t cols, int64_t groups,
                                const std::string& where) {
  if (index.dtype != DType::kI32 || index.shape != std::vector{cols})
    Fail("{} is {} {}, expected I32 [{}]", where, DTypeName(index.dtype), ShapeText(index.shape),
         cols);
  const auto group = index.Copy<int32_t>();
  std::vector<int64_t> members(static_cast<size_t>(groups));
  for (const int32_t g : group) {
    if (g < 0 || g >= groups) Fail("{}: group {} of {}", where, g, groups);
    ++members[static_cast<size_t>(g)];
  }
  for (const int64_t count : members) {
    if (count != cols / groups)
      Fail("{}: groups of {} and {} columns", where, count, cols / groups);
  }
  if (std::ranges::is_sorted(group)) return {};
  std::vector<int32_t> order(group.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t k) { return group[static_cast<size_t>(k)]; });
  return order;
}

// [N, G], from any floats of one of the two orders, or from one for all.
Matrix<float> Scales(const Tensor& stored, int64_t rows, const Layout& layout,
                     const std::string& where) {
  if (!IsFloat(stored.dtype) || stored.shape.empty() || stored.shape.size() > 2)
    Fail("{} is {} {}, no matrix of scales", where, DTypeName(stored.dtype),
         ShapeText(stored.shape));
  const Matrix<float> values = ToF32(stored);
  if (values.data.size() == 1 && !layout.inputs_first) {
    Matrix<float> all(rows, 1);
    std::ranges::fill(all.data, values.data[0]);
    return all;
  }
  Matrix<float> scales(rows, static_cast<int64_t>(values.data.size()) / rows);
  if (stored.shape !=
      (layout.inputs_first ? std::vector{scales.cols, rows} : std::vector{rows, scales.cols}))
    Fail("{} has shape {} for {} outputs", where, ShapeText(stored.shape), rows);
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t g = 0; g < scales.cols; ++g) {
      scales.row(n)[static_cast<size_t>(g)] =
          layout.inputs_first ? values.data[static_cast<size_t>(g * rows + n)]
                              : values.data[static_cast<size_t>(n * scales.cols + g)];
    }
  }
  return scales;
}

Tensor ScalePlane(Matrix<float> scales, const FormatSpec& format) {
  const std::vector<int64_t> shape = {scales.rows, scales.cols};
  if (format.row_scales()) return Tensor::Of(DType::kF32, shape, std::move(scales.data));
  std::vector<uint16_t> halves;
  for (const float scale : scales.data) {
    // A scale above 0 must not become 0 in fp16.
    halves.push_back(scale > 0 ? std::max<uint16_t>(F16FromF32(scale), 1) : F16FromF32(scale));
  }
  return Tensor::Of(DType::kF16, shape, std::move(halves));
}

// The zero points as a plane; no data where all are 0.
Tensor ZeroPlane(const Codes& zeros, int64_t rows, int64_t groups, bool inputs_first) {
  std::vector<int8_t> values;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      values.push_back(static_cast<int8_t>(inputs_first ? zeros.At(g, n) : zeros.At(n, g)));
    }
  }
  if (std::ranges::all_of(values, [](int8_t zero) { return zero == 0; })) return {};
  return Tensor::Of(DType::kI8, {rows, groups}, std::move(values));
}

Tensor CodePlane(const Codes& codes, const PackedWeights& w, const std::vector<int32_t>& gather,
                 bool inputs_first) {
  const int64_t row_bytes = PackedBytes(w.cols, w.format.bits);
  std::vector<uint8_t> packed(static_cast<size_t>(w.rows * row_bytes));
  constexpr int64_t kBlock = 16;  // rows whose codes share cache lines where inputs come first
  ParallelFor(static_cast<size_t>((w.rows + kBlock - 1) / kBlock), [&](size_t block) {
    std::vector<int8_t> row(static_cast<size_t>(w.cols));
    const int64_t first = static_cast<int64_t>(block) * kBlock;
    for (int64_t n = first; n < std::min(first + kBlock, w.rows); ++n) {
      for (size_t i = 0; i < row.size(); ++i) {
        const int64_t k = gather.empty() ? static_cast<int64_t>(i) : gather[i];
        row[i] = static_cast<int8_t>(inputs_first ? codes.At(k, n) : codes.At(n, k));
      }
      PackCodes(row.data(), w.cols, w.format.bits, packed.data() + n * row_bytes);
    }
  });
  return Tensor::Of(DType::kU8, {w.rows, row_bytes}, std::move(packed));
}

// Refuses what makes a linear do more than its codes say.
void RefuseMore(const Json& config, const std::string& where) {
  const auto refuse = [&](const char* key) {
    Fail("{}: {} is not supported; start from the unquantized model", where, key);
  };
  const auto transforms = JsonFind<Json>(config, "transform_config", where);
  if (transforms && !transforms->empty()) {
    const auto some = JsonFind<Json>(*transforms, "config_groups", where + ": transform_config");
    if (!some || !some->empty()) refuse("transform_config");
  }
  const auto sparsity = JsonFind<Json>(config, "sparsity_config", where);
  if (sparsity && !sparsity->empty()) {
    const std::string in = where + ": sparsity_config";
    if (JsonGet<std::string>(*sparsity, "format", in) != "dense") refuse("sparsity_config");
  }
  const auto words = JsonFind<std::string>(config, "pack_dtype", where);
  if (words && *words != "int32") Fail("{}: pack_dtype \"{}\", expected int32", where, *words);
}

// The widths that a layout can have; a config of compressed-tensors names one or a few of them.
// (Older versions of it filled a word with 32 / bits codes, rounded down. Where that is no stream,
// it fits another width's shape at most.)
std::vector<int> WidthsOf(const Layout& layout, const Json& config, const std::string& where) {
  if (layout.awq_order) return {4};
  if (layout.method == "gptq") return {2, 3, 4, 8};  // 5 to 7 in planes of bits
  std::vector<int> widths;
  const auto groups = JsonFind<Json>(config, "config_groups", where).value_or(Json::object());
  for (const Json& group : groups) {
    const auto weights = JsonFind<Json>(group, "weights", where + ": config_groups");
    if (!weights || !weights->is_object()) continue;
    const auto bits = JsonFind<int64_t>(*weights, "num_bits", where + ": weights");
    if (!bits) continue;
    if (*bits < 2 || *bits > 8) {
      Fail("{}: num_bits {} cannot be read, only 2 to 8; start from the unquantized model", where,
           *bits);
    }
    widths.push_back(static_cast<int>(*bits));
  }
  return widths.empty() ? std::vector{2, 3, 4, 5, 6, 7, 8} : widths;
}

// Returns whether columns stand in an order that only the index of their groups tells.
bool HasOrder(const Json& config, std::string_view method, const std::string& where) {
  if (method == "gptq") return JsonFind<bool>(config, "desc_act", where).value_or(false);
  const auto groups = JsonFind<Json>(config, "config_groups", where).value_or(Json::object());
  return std::ranges::any_of(groups, [&](const Json& group) {
    const auto weights = JsonFind<Json>(group, "weights", where + ": config_groups");
    if (!weights || !weights->is_object()) return false;
    const auto order = weights->find("actorder");
    return order != weights->end() && order->is_string() &&
           order->get_ref<const std::string&>() == "group";
  });
}

}  // namespace

StoredCodes::StoredCodes(const Json& config, const std::string& where) {
  const auto named = JsonFind<std::string>(config, "quant_method", where);
  if (!named) {
    Fail(
        "{}: quantization_config has no quant_method (MLX's files have none); start from the "
        "unquantized model",
        where);
  }
  const std::string& method = *named;
  std::vector<std::string_view> methods = {"nibble"}, variants;
  std::string variant;
  for (const Layout& layout : kLayouts) {
    if (methods.back() != layout.method) methods.push_back(layout.method);
    if (layout.method != method) continue;
    variants.push_back(layout.variant);
    // GPTQModel also writes this key as "format".
    auto found = JsonFind<std::string>(config, std::string(layout.variant_key), where);
    if (!found) found = JsonFind<std::string>(config, "format", where);
    variant = found.value_or(std::string(variants[0]));
    for (char& c : variant) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (variant != layout.variant) continue;
    RefuseMore(config, where);
    layout_ = &layout;
    ordered_ = HasOrder(config, method, where);
    widths_ = WidthsOf(layout, config, where);
    return;
  }
  if (variants.empty()) {
    Fail("{}: quant_method \"{}\" cannot be read, only {}; start from the unquantized model", where,
         method, fmt::join(methods, ", "));
  }
  Fail("{}: {} \"{}\" cannot be read, only {}; start from the unquantized model", where, method,
       variant, fmt::join(variants, ", "));
}

PackedWeights CodesOfMxfp4(const Tensor& blocks, const std::string& where) {
  constexpr int64_t kGroup = 32;
  constexpr int kMin = 104, kMax = 143;  // exponents whose scale, half of theirs, is fp16
  const int64_t rows = blocks.shape[0], cols = blocks.shape[1], groups = cols / kGroup;
  PackedWeights w = {.format = {.bits = 4, .group = kGroup, .codebook = Codebook::kE2m1},
                     .rows = rows,
                     .cols = cols};
  std::vector<uint8_t> codes(static_cast<size_t>(rows * cols / 2));
  std::vector<uint16_t> scales(static_cast<size_t>(rows * groups));
  const auto* const from = reinterpret_cast<const uint8_t*>(blocks.data);
  std::atomic<int> max = 0;
  ParallelFor(static_cast<size_t>(rows), [&](size_t row) {
    for (auto i = static_cast<int64_t>(row) * groups; i < static_cast<int64_t>(row + 1) * groups;
         ++i) {
      const uint8_t* const block = from + i * (1 + kGroup / 2);
      const int exponent = block[0];
      if (exponent > kMax) max = exponent;
      const int below = std::max(kMin - exponent, 0);
      scales[static_cast<size_t>(i)] = F16FromF32(std::ldexp(1.0f, exponent + below - 128));
      int8_t bits[kGroup];
      for (int e = 0; e < kGroup; ++e) {
        const int code = block[1 + e % 16] >> (e < 16 ? 0 : 4) & 15;
        bits[e] = static_cast<int8_t>(
            below == 0
                ? code
                : E2m1Bits(NearestE2m1(std::ldexp(kE2m1Codes[static_cast<size_t>(code)], -below))));
      }
      PackCodes(bits, kGroup, 4, codes.data() + i * kGroup / 2);
    }
  });
  if (max > 0) Fail("{}: a block of MXFP4 has a scale of 2^{}", where, max - 127);
  w.codes = Tensor::Of(DType::kU8, {rows, cols / 2}, std::move(codes));
  w.scales = Tensor::Of(DType::kF16, {rows, groups}, std::move(scales));
  return w;
}

std::string_view StoredCodes::name() const {
  return layout_->name;
}

bool StoredCodes::Has(const TensorStore& store, const std::string& linear) const {
  const Tensor* codes = store.Find(linear + std::string(layout_->codes));
  return codes != nullptr && !IsFloat(codes->dtype);
}

PackedLinear StoredCodes::Read(const TensorStore& store, const std::string& linear, int64_t rows,
                               int64_t cols, std::set<std::string>& used) const {
  const std::string where = store.directory() + ": " + linear;
  const auto find = [&](std::string_view suffix) {
    const std::string name = linear + std::string(suffix);
    used.insert(name);
    return store.Find(name);
  };
  const auto get = [&](std::string_view suffix) -> const Tensor& {
    const Tensor* tensor = find(suffix);
    if (tensor == nullptr) Fail("{}{} is missing", where, suffix);
    return *tensor;
  };
  const bool flip = layout_->inputs_first;
  const auto matrix = [&](const Tensor& words, std::string_view suffix, int64_t outer,
                          int64_t inner, bool along_rows, bool less_one,
                          std::span<const int> widths) {
    if (flip) std::swap(outer, inner);
    return Codes(words, outer, inner, along_rows, less_one, widths, *layout_,
                 where + std::string(suffix));
  };
  const Codes codes = matrix(get(layout_->codes), layout_->codes, rows, cols,
                             layout_->codes_along_rows, false, widths_);
  const int bits[] = {codes.bits()};
  Matrix<float> scales =
      Scales(get(layout_->scales), rows, *layout_, where + std::string(layout_->scales));
  const int64_t groups = scales.cols;
  if (groups < 1 || cols % groups != 0) Fail("{}: {} groups of {} inputs", where, groups, cols);

  PackedLinear result;
  result.input.width = cols;
  const Tensor* index = ordered_ && groups > 1 ? &get(layout_->groups) : find(layout_->groups);
  if (index != nullptr)
    result.input.gather = GroupOrder(*index, cols, groups, where + std::string(layout_->groups));
  PackedWeights& w = result.weights;
  w = {.format = {.bits = codes.bits(), .group = groups == 1 ? 0 : cols / groups},
       .rows = rows,
       .cols = cols};
  const Tensor* zeros = layout_->may_lack_zeros ? find(layout_->zeros) : &get(layout_->zeros);
  if (zeros != nullptr) {
    w.zeros = ZeroPlane(matrix(*zeros, layout_->zeros, rows, groups, layout_->zeros_along_rows,
                               layout_->zeros_less_one, bits),
                        rows, groups, flip);
    w.format.symmetric = w.zeros.data == nullptr;
  }
  w.scales = ScalePlane(std::move(scales), w.format);
  w.codes = CodePlane(codes, w, result.input.gather, flip);
  find(".weight_shape");  // follows from the config
  ValidateLinear(result, where);
  return result;
}

}  // namespace nibble
