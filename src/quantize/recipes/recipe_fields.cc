// SPDX-License-Identifier: Apache-2.0
#include "quantize/recipes/recipe_fields.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using Kind = FieldDomain::Kind;
using Reason = std::string_view;

// Setters and getters of plain members, and of those of one or more formats.
template <auto kMember>
void Set(Recipe& recipe, double value) {
  using T = std::remove_reference_t<decltype(recipe.*kMember)>;
  recipe.*kMember = static_cast<T>(value);
}
template <auto kMember>
double Get(const Recipe& recipe) {
  return static_cast<double>(recipe.*kMember);
}
template <auto kMember, FormatSpec Recipe::*... kFormats>
void SetFormats(Recipe& recipe, double value) {
  using T = std::remove_reference_t<decltype(FormatSpec{}.*kMember)>;
  (((recipe.*kFormats).*kMember = static_cast<T>(value)), ...);
}

// Sets the bits of activations and caches. A recipe's clip is for its few bits: at 8, of narrow
// inputs, it cuts off more than finer steps win, and of wider ones it hardly matters.
template <FormatSpec Recipe::*... kFormats>
void SetBits(Recipe& recipe, double value) {
  SetFormats<&FormatSpec::bits, kFormats...>(recipe, value);
  if (value < 8) return;
  ((void)((recipe.*kFormats).clip = (recipe.*kFormats).clip == 0 ? 0 : 1), ...);
}

constexpr auto kWeights = &Recipe::weights, kActs = &Recipe::activations;
constexpr auto kK = &Recipe::k, kV = &Recipe::v;
constexpr auto kTailWeights = &Recipe::tail_weights, kTailActs = &Recipe::tail_activations;

Reason Always(const Recipe&) {
  return "";
}
Reason NeedsWeights(const Recipe& r) {
  return r.weights.quantized() ? "" : "no weights are rounded";
}
Reason NeedsInput(const Recipe& r) {
  return r.activations.bits < 32 ? "" : "an embedding multiplies nothing";
}
Reason NeedsActs(const Recipe& r) {
  return r.activations.quantized() ? "" : "activations are not quantized";
}
Reason NeedsEither(const Recipe& r) {
  return r.weights.quantized() || r.activations.quantized()
             ? ""
             : "neither weights nor activations are quantized";
}
Reason NeedsCache(const Recipe& r) {
  return r.k.quantized() || r.v.quantized() ? "" : "the cache is not quantized";
}
Reason NeedsKeys(const Recipe& r) {
  return r.k.quantized() ? "" : "cached keys are not quantized";
}
Reason NeedsWideCache(const Recipe& r) {
  return r.chooses_cache() ? "" : "neither keys nor values have 5 to 8 bits";
}
Reason NeedsNarrowCache(const Recipe& r) {
  const bool narrow = std::min(r.k.bits, r.v.bits) < 8 || r.chooses_cache();
  return narrow ? "" : "neither keys nor values have fewer than 8 bits";
}
Reason NeedsTail(const Recipe& r) {
  if (r.tail == 0) return "there are no outlier channels; use --tail";
  if (!r.weights.quantized()) return NeedsWeights(r);
  return r.order == ChannelOrder::kNone ? "no order puts outlier channels last; use --order" : "";
}
Reason NeedsOrder(const Recipe& r) {
  return r.order == ChannelOrder::kNone ? "inputs are not looked at; use --order" : "";
}
Reason NeedsGptq(const Recipe& r) {
  if (!r.weights.quantized()) return NeedsWeights(r);
  return r.rounding == Rounding::kGptq ? "" : "weights are rounded to nearest; use --rounding gptq";
}
Reason NeedsGradients(const Recipe& r) {
  const Reason reason = NeedsGptq(r);
  return reason.empty() && r.arranges_channels() ? "channels are ordered or scaled" : reason;
}
Reason NeedsOwnCodes(const Recipe& r) {
  const Reason reason = NeedsGptq(r);
  if (!reason.empty() || !r.weights.codewords()) return reason;
  return r.weights.lattice() ? "weights are codes of a lattice" : "weights become codewords";
}
Reason NeedsRotation(const Recipe& r) {
  return r.rotation == Rotation::kNone ? "nothing is rotated; use --rotation" : "";
}

Reason NeedsOnline(const Recipe& r) {
  return r.transforms_online() ? "" : "nothing is transformed online; use --rotation and --online";
}

Reason NeedsMixedOutputs(const Recipe& r) {
  if (const Reason reason = NeedsOnline(r); !reason.empty()) return reason;
  if (!r.weights.quantized()) return "weights are not quantized";
  return r.transforms_outputs() ? "" : "channels are ordered, or outputs weighed in groups";
}

Reason NeedsComparison(const Recipe& r) {
  if (const Reason reason = NeedsOnline(r); !reason.empty()) return reason;
  if (r.arranges_channels()) return "channels are arranged for what they are transformed to";
  return r.falls_back() ? "" : "nothing is calibrated";
}

Reason NeedsWeightGroups(const Recipe& r) {
  if (!r.weights.quantized() || !r.weights.second_level) return NeedsWeights(r);
  return r.weights.group == 0 ? "weights have no groups; use --w-group" : "";
}
Reason NeedsPlacesOfChannels(const Recipe& r) {
  const bool places = r.tail > 0 || r.weights.group > 0 || r.activations.group > 0;
  return r.order == ChannelOrder::kNone || places ? "" : "there is neither a tail nor a group";
}
Reason NeedsRoundedInputs(const Recipe& r) {
  const Reason reason = NeedsGptq(r);
  if (!reason.empty() || !r.quantized_calibration) return reason;
  const bool rounded = r.activations.quantized() || r.k.quantized() || r.v.quantized();
  return rounded ? "" : "neither activations nor the cache are quantized";
}

// The reason why a field that is turned on changes nothing; turning one off is always allowed.
template <auto kMember, Reason (*kNeeds)(const Recipe&)>
Reason IfOn(const Recipe& recipe) {
  return recipe.*kMember ? kNeeds(recipe) : Reason();
}

Reason NeedsRotatedNumbers(const Recipe& r) {
  const Reason reason = NeedsRotation(r);
  return reason.empty() ? NeedsEither(r) : reason;
}

void SetGroup(Recipe& r, double value) {
  r.weights.group = static_cast<int64_t>(value);
  r.weights.second_level &= value != 0;
  // Activations have no groups beside a second level.
  if (!r.weights.second_level) r.activations.group = r.weights.group;
}

void SetWeightBits(Recipe& r, double value) {
  r.weights.bits = static_cast<int>(value);
  r.weights.second_level &= r.weights.bits <= 4;
  const int only = OnlyBits(r.weights.codebook);
  const bool kept = only == 0 ? r.weights.bits <= 4 : r.weights.bits == only;
  if (!kept) r.weights.codebook = Codebook::kNone;
}

void SetCodebook(Recipe& r, double value) {
  r.weights.codebook = static_cast<Codebook>(value);
  if (r.weights.codebook == Codebook::kNone) return;
  r.weights.symmetric = true;
  r.weights.second_level = false;
  if (r.weights.codewords()) r.weights.group = 0;
  if (r.weights.e2m1()) r.weights.clip = 1;
  if (const int only = OnlyBits(r.weights.codebook); only > 0) r.weights.bits = only;
}

// A codebook with bits of its own takes no others that were asked for.
Reason NeedsFreeBits(const Recipe& r) {
  const int only = OnlyBits(r.weights.codebook);
  const bool others = std::ranges::any_of(r.asked, [&](const FieldValue& asked) {
    return asked.field->name == "w-bits" && asked.value != only;
  });
  return only > 0 && others ? "this codebook has bits of its own" : "";
}

// Codewords are symmetric and have a scale for each row; to ask for just that is no error.
Reason NeedsAsymmetry(const Recipe& r) {
  if (r.weights.codewords() && Asks(r, "w-asym")) return "codewords are symmetric";
  return NeedsWeights(r);
}
Reason NeedsGroups(const Recipe& r) {
  if (r.weights.codewords() && Asks(r, "w-group")) return "codewords have one scale a row";
  return NeedsWeights(r);
}

Reason NeedsGrid(const Recipe& r) {
  if (r.weights.e2m1()) return "floats of 4 bits have the range of their weights";
  if (r.weights.lattice()) return "codewords of a lattice have no grid";
  return r.weights.codewords() ? "codewords have no grid" : NeedsWeights(r);
}

Reason NeedsSearchedClips(const Recipe& r) {
  const Reason reason = NeedsGrid(r);
  return reason.empty() && r.weights.clip > 0 ? "clips of weights are not searched; use --w-clip 0"
                                              : reason;
}

Reason NeedsFloatWeights(const Recipe& r) {
  return r.rounding == Rounding::kStored ? "codes of the source stay" : NeedsGrid(r);
}

Reason NeedsBlockEpochs(const Recipe& r) {
  return r.block_epochs > 0 ? NeedsFloatWeights(r) : "layers learn nothing; use --block-epochs";
}

Reason NeedsFewBits(const Recipe& r) {
  return r.weights.bits <= 4 ? "" : "weights of more than 4 bits are numbers";
}

void SetWeightGroup(Recipe& r, double value) {
  r.weights.group = static_cast<int64_t>(value);
  r.weights.second_level &= value != 0;
}

void SetTwoLevel(Recipe& r, double value) {
  r.weights.second_level = value != 0;
  if (value != 0) r.activations.group = 0;
}

void SetActsAsymmetric(Recipe& r, double value) {
  r.activations.symmetric = value == 0;
  r.activations.signed_scale &= value == 0;
}

void SetDownBits(Recipe& r, double value) {
  r.rules.push_back({std::string(kDownPattern), fmt::format("w-bits={0},a-bits={0}", value)});
}

constexpr std::array kTransformBits = {0, 16, 32};  // by the index of a name

void SetTransformBits(Recipe& r, double value) {
  r.transform_bits = kTransformBits[static_cast<size_t>(value)];
}

template <FormatSpec Recipe::*... kFormats>
void SetAsymmetric(Recipe& r, double value) {
  (((r.*kFormats).symmetric = value == 0), ...);
}

template <std::optional<FormatSpec> Recipe::*kTable>
void SetTableBits(Recipe& r, double value) {
  r.*kTable = FormatSpec{.bits = static_cast<int>(value)};
}

FieldDomain Whole(double min, double max, std::vector<double> others = {}) {
  return {.kind = Kind::kWhole, .min = min, .max = max, .others = std::move(others)};
}
FieldDomain Real(double min, double max) {
  return {.kind = Kind::kReal, .min = min, .max = max};
}
FieldDomain Switch(std::string_view off) {
  return {.kind = Kind::kSwitch, .off = off};
}
FieldDomain Names(std::vector<std::string_view> names) {
  return {.kind = Kind::kName, .names = std::move(names)};
}

const FieldDomain kBits = Whole(2, 8, {16}), kStoredBits = Whole(2, 8, {16, 32}),
                  kGroup = Whole(0, 1 << 20), kShare = Real(0, 1);

std::vector<RecipeField> LinearFields() {
  return {
      {"w-bits", kStoredBits, "Bits of weights; 16: bf16 or fp16, 32: fp32", SetWeightBits,
       NeedsFreeBits},
      {"a-bits", kBits, "Bits of activations", SetBits<kActs>, NeedsInput},
      {"group", kGroup,
       "Inputs that share a scale, weights and activations; 0 = row. Where it does not divide the "
       "inputs: the largest multiple of 32 below that does, or the row",
       SetGroup, NeedsEither},
      {"w-group", kGroup, "Group of weights", SetWeightGroup, NeedsGroups},
      {"two-level", Switch("one-level"), "Scales of weight groups are integers times the row's",
       SetTwoLevel, NeedsWeightGroups},
      {"a-group", kGroup, "Group of activations", SetFormats<&FormatSpec::group, kActs>, NeedsActs},
      {"w-asym", Switch("w-sym"), "Asymmetric weights", SetAsymmetric<kWeights>, NeedsAsymmetry},
      {"a-asym", Switch("a-sym"), "Asymmetric activations", SetActsAsymmetric, NeedsActs},
      {"a-signed", Switch("a-unsigned"),
       "Activation scales with the sign that uses the lowest code",
       SetFormats<&FormatSpec::signed_scale, kActs>, NeedsActs},
      {"w-clip", kShare, "Clip of weights; 0 = searched", SetFormats<&FormatSpec::clip, kWeights>,
       NeedsGrid},
      {"squared-clips", Switch("power-clips"),
       "Searched clips of weights make the sum of squared errors smallest, not of |error|^2.4",
       SetFormats<&FormatSpec::squared_clips, kWeights>, NeedsSearchedClips},
      {"a-clip", kShare, "Clip of activations; 0 = searched for each linear on calibration data",
       SetFormats<&FormatSpec::clip, kActs>, NeedsActs},
      {"sparse", Names({"none", "2:4"}), "Weights that are 0: 2:4 (two of four inputs) or none",
       SetFormats<&FormatSpec::sparse, kWeights>, NeedsWeights},
      {"codebook", Names({std::begin(kCodebookNames), std::end(kCodebookNames)}),
       "Weights that are no integers: of 2 to 4 bits, eight a codeword of a lattice (e8p, QuIP#); "
       "of 4 bits, floats as in MXFP4 (e2m1, only to nearest). To compare with e8p, what is stored "
       "being 16-bit floats: half-integer (2 to 4 bits), kmeans (2), e8 (1)",
       SetCodebook, NeedsFewBits},
      {"hadamard-bits", Names({"auto", "16", "32"}),
       "Precision of a linear's online transform: fp32, fp16 (rows are rounded to it in front and "
       "behind), auto (what each machine does best); that of heads for the cache stays fp32",
       SetTransformBits, NeedsOnline},
      {"tail", Whole(0, 4000),
       "Outlier channels: the last so many; where an eighth of hidden_size is less, of 4096 in "
       "proportion",
       Set<&Recipe::tail>, IfOn<&Recipe::tail, NeedsTail>},
      {"tail-bits", kBits, "Bits of their weights and activations",
       SetFormats<&FormatSpec::bits, kTailWeights, kTailActs>, NeedsTail},
  };
}

// Formats of cache, head and embedding.
std::vector<RecipeField> OtherFormatFields() {
  return {
      {"kv-bits", kStoredBits, "Bits of the KV cache; 16: bf16, 32: fp32", SetBits<kK, kV>, Always},
      {"k-bits", kStoredBits, "Bits of cached keys", SetBits<kK>, Always},
      {"v-bits", kStoredBits, "Bits of cached values", SetBits<kV>, Always},
      {"kv-group", kGroup, "Group of the cache; 0 = head", SetFormats<&FormatSpec::group, kK, kV>,
       NeedsCache},
      {"kv-asym", Switch("kv-sym"), "Asymmetric cache", SetAsymmetric<kK, kV>, NeedsCache},
      {"kv-clip", Real(0.05, 1), "Clip of the cache", SetFormats<&FormatSpec::clip, kK, kV>,
       NeedsCache},
      {"down-bits", kBits, "Bits of down's weights and activations", SetDownBits, Always},
      {"head-bits", kStoredBits, "Bits of the head; 8 where weights are quantized",
       SetTableBits<&Recipe::head>, Always},
      {"embed-bits", kStoredBits, "Bits of the embedding, likewise",
       SetTableBits<&Recipe::embedding>, Always},
  };
}

std::vector<RecipeField> MethodFields() {
  return {
      {"rotation", Names({"none", "inputs", "hadamard", "random", "fourier", "kronecker"}),
       "Of the residual stream, or of each input behind a norm, online; none drops all transforms. "
       "fourier: QuIP#'s randomized Fourier transform, also of the inputs of o and down. "
       "kronecker: products of two random matrices as in QuIP, also for these and heads. Others "
       "have Hadamard matrices there",
       Set<&Recipe::rotation>, Always, Get<&Recipe::rotation>},
      {"online", Switch("no-online"),
       "With a rotation: the transforms at run time too, of heads and of down's input",
       Set<&Recipe::online_transforms>, IfOn<&Recipe::online_transforms, NeedsRotation>,
       Get<&Recipe::online_transforms>},
      {"output-transforms", Switch("no-output-transforms"),
       "Transform outputs as well as inputs, at run time: those of q, k, gate and up, and of o and "
       "down where a norm is behind them (QuIP#)",
       Set<&Recipe::output_transforms>, IfOn<&Recipe::output_transforms, NeedsMixedOutputs>,
       Get<&Recipe::output_transforms>},
      {"fallback", Switch("no-fallback"),
       "Leave out online transforms in front of linears whose products calibration finds closer "
       "without",
       Set<&Recipe::fallback>, IfOn<&Recipe::fallback, NeedsComparison>, Get<&Recipe::fallback>},
      {"learned-rotation", Switch("fixed-rotation"),
       "Learn the rotation of the residual stream from calibration data",
       Set<&Recipe::learned_rotation>, IfOn<&Recipe::learned_rotation, NeedsRotatedNumbers>,
       Get<&Recipe::learned_rotation>},
      {"order", Names({"none", "largest", "energy"}),
       "Order of input channels, outliers last: by their largest value, by energy, none",
       Set<&Recipe::order>, NeedsPlacesOfChannels, Get<&Recipe::order>},
      {"alpha", kShare,
       "SmoothQuant's strength, 0 = off; needs norms that are not folded (--rotation none)",
       Set<&Recipe::smoothing>, Always, Get<&Recipe::smoothing>},
      {"balance", kShare,
       "In front of online transforms behind norms: channels divided by x^this / w^(1 - this), "
       "root mean squares of inputs and weights; 0 = off",
       Set<&Recipe::balance>, IfOn<&Recipe::balance, NeedsOnline>, Get<&Recipe::balance>},
      {"key-alpha", kShare, "SmoothAttention's strength, 0 = off", Set<&Recipe::key_smoothing>,
       Always, Get<&Recipe::key_smoothing>},
      {"key-balance", kShare,
       "In front of the transform of heads: keys divided by k^this / q^(1 - this); 0 = off",
       Set<&Recipe::key_balance>, IfOn<&Recipe::key_balance, NeedsOnline>,
       Get<&Recipe::key_balance>},
      {"center-keys", Switch("raw-keys"),
       "Cache keys without their mean over calibration data, which softmax does not see",
       Set<&Recipe::center_keys>, IfOn<&Recipe::center_keys, NeedsKeys>, Get<&Recipe::center_keys>},
      {"recent", Switch("no-recent"),
       "Cache the first 64 and the last 64 to 127 tokens of a text with 8 bits besides, which a "
       "query reads in place of fewer",
       Set<&Recipe::recent>, IfOn<&Recipe::recent, NeedsNarrowCache>, Get<&Recipe::recent>},
      {"cache-loss", Real(0, 10),
       "Cached keys and values of the layers that bear it best have 4 bits instead of 5 to 8, as "
       "many as cost this together, in nats per token of calibration data; 0 = none. Keys are then "
       "centered and balanced as for 4 bits",
       Set<&Recipe::cache_loss>, IfOn<&Recipe::cache_loss, NeedsWideCache>,
       Get<&Recipe::cache_loss>},
      {"output-alpha", kShare,
       "Strength of QServe's smoothing of what o and down read, 0 = off; needs --no-online",
       Set<&Recipe::output_smoothing>, Always, Get<&Recipe::output_smoothing>},
      {"rounding", Names({"rtn", "gptq", "stored"}),
       "To nearest, by GPTQ, or not at all: the codes that the source has", Set<&Recipe::rounding>,
       NeedsWeights, Get<&Recipe::rounding>},
      {"damp", Real(0, 10), "GPTQ: share of the mean Hessian diagonal added", Set<&Recipe::damp>,
       NeedsGptq, Get<&Recipe::damp>},
      {"act-order", Switch("no-act-order"), "GPTQ: most active columns first",
       Set<&Recipe::act_order>, IfOn<&Recipe::act_order, NeedsGptq>, Get<&Recipe::act_order>},
      {"gptaq", kShare, "GPTQ: share of GPTAQ's input-error correction, 0 = off",
       Set<&Recipe::gptaq>, IfOn<&Recipe::gptaq, NeedsGptq>, Get<&Recipe::gptaq>},
      {"foem", kShare,
       "GPTQ: share of what the errors of other columns moved a weight by that is taken back "
       "before it is rounded (FOEM), 0 = off",
       Set<&Recipe::foem>, IfOn<&Recipe::foem, NeedsOwnCodes>, Get<&Recipe::foem>},
      {"calib-quantized", Switch("calib-float"),
       "GPTQ: calibrate with activation and cache quantization on",
       Set<&Recipe::quantized_calibration>, NeedsRoundedInputs,
       Get<&Recipe::quantized_calibration>},
      {"loss-groups", Whole(0, 16),
       "GPTQ: weigh calibration tokens by what errors cost the predictions, apart for so many "
       "groups of a linear's outputs (GuidedQuant); 0: all alike",
       Set<&Recipe::loss_groups>, IfOn<&Recipe::loss_groups, NeedsGradients>,
       Get<&Recipe::loss_groups>},
      {"sweeps", Whole(0, 20), "GPTQ: passes over the codes at the end", Set<&Recipe::sweeps>,
       IfOn<&Recipe::sweeps, NeedsGptq>, Get<&Recipe::sweeps>},
      {"learned-scales", Switch("fixed-scales"),
       "Tune scales of rounded weights towards the float model's predictions, below 4-bit weights "
       "also a head of its own; takes 32768 tokens of calibration at least, 61440 below 4-bit "
       "weights or 8-bit activations",
       Set<&Recipe::learned_scales>, IfOn<&Recipe::learned_scales, WhyScaleTuningIsSkipped>,
       Get<&Recipe::learned_scales>},
  };
}

// Recorded where they are on: checkpoints of other recipes are what they were without these fields.
std::vector<RecipeField> SearchFields() {
  std::vector<RecipeField> fields = {
      {"tail-threshold", Real(0, 1e6),
       "QUIK: inputs without a value above this have no outlier channels, those of 8 bits without "
       "one above twice this; 0 = all have them",
       Set<&Recipe::tail_threshold>, IfOn<&Recipe::tail_threshold, NeedsTail>,
       Get<&Recipe::tail_threshold>},
      {"wide-inputs", kShare,
       "QUIK: this share of the inputs, those of the largest variance, and the weights that read "
       "them have 8 bits",
       Set<&Recipe::wide_inputs>, IfOn<&Recipe::wide_inputs, NeedsOrder>,
       Get<&Recipe::wide_inputs>},
      {"scale-steps", Whole(0, 100),
       "AWQ: channels of norms, v and up scaled by a power of their mean, searched in so many "
       "steps from 0 to 1; 0 = off. Needs --rotation none",
       Set<&Recipe::scale_steps>, IfOn<&Recipe::scale_steps, NeedsWeights>,
       Get<&Recipe::scale_steps>},
      {"output-clips", Switch("no-output-clips"),
       "AWQ: cut weights off, but for q and k, where their products come closest",
       Set<&Recipe::output_clips>, IfOn<&Recipe::output_clips, NeedsFloatWeights>,
       Get<&Recipe::output_clips>},
      {"block-epochs", Whole(0, 100),
       "OmniQuant: passes over calibration text in which each layer learns clips of its weights; 0 "
       "= off. Needs --rotation none and --rounding rtn",
       Set<&Recipe::block_epochs>, IfOn<&Recipe::block_epochs, NeedsFloatWeights>,
       Get<&Recipe::block_epochs>},
      {"learned-channels", Switch("fixed-channels"),
       "With them, learn scales of what norms and v give out", Set<&Recipe::learned_channels>,
       IfOn<&Recipe::learned_channels, NeedsBlockEpochs>, Get<&Recipe::learned_channels>},
      {"tune-blocks", Whole(0, 100),
       "GPTQ: after each input's linears are rounded, so many passes over calibration text that "
       "tune the layer's other weights and the scales of these towards the float layer's output "
       "(QuIP#); 0 = off",
       Set<&Recipe::tune_epochs>, IfOn<&Recipe::tune_epochs, NeedsGptq>, Get<&Recipe::tune_epochs>},
  };
  for (RecipeField& field : fields) field.always_recorded = false;
  return fields;
}

}  // namespace

std::span<const RecipeField> RecipeFields() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all = LinearFields();
    for (RecipeField& field : all) field.of_linears = true;
    for (const auto& more : {OtherFormatFields(), MethodFields(), SearchFields()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  return fields;
}

}  // namespace nibble
