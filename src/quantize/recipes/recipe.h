// SPDX-License-Identifier: Apache-2.0
// A recipe is a quantization method as data: which transforms, which formats, which rounding. Every
// field can be overridden on the command line, so hybrids cost nothing. The engine never sees one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/network.h"
#include "models/plan.h"

namespace nibble {

// The rotation of the residual stream. kNone: no online transforms either. kInputs: the stream
// stays as it is, and what stands behind its norms has a Hadamard transform online; so it is with
// all others in networks whose stream nothing may turn.
//
// kFourier: QuIP#'s randomized Fourier transform (transforms/fourier.h) of the stream and online of
// all that o and down read, and of outputs; heads keep a Hadamard matrix each.
//
// kKronecker: QuIP's transform, products of two random matrices (RandomKronecker), of the stream,
// of heads and online of what o and down read.
enum class Rotation { kNone, kInputs, kHadamard, kRandom, kFourier, kKronecker };
// kStored: keeps the codes that the source has and rounds its other linears to nearest
// (models/import/stored_codes.h).
enum class Rounding { kNearest, kGptq, kStored };
// The order of input channels, rising by what calibration saw of them, so that the tail takes the
// outliers and groups hold channels of one size: the largest value (QUIK) or the sum of squares
// (Atom).
enum class ChannelOrder { kNone, kLargest, kEnergy };

std::string_view RotationName(Rotation rotation);  // "none", "inputs", ..
std::string_view RoundingName(Rounding rounding);  // "rtn", "gptq", "stored"
std::string_view OrderName(ChannelOrder order);    // "none", "largest", "energy"

// Returns whether cached keys or values of this format could have fewer bits
// (quantize/plan/choose_cache.h).
inline constexpr int kNarrowCacheBits = 4;
inline bool IsWideCache(const FormatSpec& format) {
  return format.quantized() && format.bits > kNarrowCacheBits;
}

struct RecipeField;  // recipe_fields.h
struct FieldValue {
  const RecipeField* field;
  double value;
};

// Changes of the recipe for some linears.
struct Rule {
  // PCRE2; found in a linear's name, the source's ("model.layers.3.mlp.down_proj") or Nibble's
  // ("layers.3.down").
  std::string pattern;
  std::string fields;  // of linears, as ParseFields reads them: "w-bits=8,a-asym"
};
inline constexpr std::string_view kDownPattern = "\\.down$";

struct Recipe {
  std::string_view name;
  std::string_view summary;  // one line for --help
  Rotation rotation = Rotation::kNone;
  // With a rotation there are also transforms that run online, before o and down and on heads of q
  // and k.
  bool online_transforms = true;
  // Outputs of linears that no rotation mixes, those of q, k, gate and up, are transformed online,
  // so that rounding sees rows without outliers as well as columns (QuIP#, section 3).
  bool output_transforms = false;
  int transform_bits = 0;  // of a linear's online transform (InputSpec::transform_bits)
  Rounding rounding = Rounding::kNearest;
  // Formats of all layer linears and of the cache. Activations of clip 0: the clip of every linear
  // is searched (quantize/plan/choose_clips.h).
  FormatSpec weights, activations, k, v;  // activations of 32 bits: none, as of an embedding
  // Weights of the tables; without: 8 bits where the weights above are quantized, else theirs. The
  // head's input has 8 bits where head and activations are quantized.
  std::optional<FormatSpec> head = {}, embedding = {};
  // Outliers: input channels in this order, the last `tail` of them in formats of their own
  // (TailColumns), or as many of wider inputs in proportion.
  ChannelOrder order = ChannelOrder::kNone;
  int64_t tail = 0;
  bool tail_grows = false;
  FormatSpec tail_weights, tail_activations;
  // Inputs without a value above this have no outliers, and this share of the inputs, those of the
  // largest mean squares, has linears of 8 bits (quantize/plan/choose_outliers.h); 0 = none.
  double tail_threshold = 0, wide_inputs = 0;
  // Online transforms are left out where calibration finds products closer without them
  // (quantize/plan/choose_transforms.h).
  bool fallback = true;
  // The random rotation of the residual stream is followed by a learned one
  // (quantize/learn/learn_rotation.h).
  bool learned_rotation = false;
  // The scales of rounded weights are learned in the end, where LearnsScales says so
  // (quantize/learn/learn_scales.h).
  bool learned_scales = false;
  std::vector<Rule> rules;             // later ones win
  std::vector<FieldValue> asked = {};  // changes of the recipe; an error if they change nothing
  // SmoothQuant's alpha (Xiao et al. 2023): channels behind a norm are divided by max|x|^alpha /
  // max|w|^(1 - alpha), weights multiplied; 0 = not at all. Not where norms are folded.
  double smoothing = 0;
  // Smoothing by root mean squares in place of largest values, in front of an online transform,
  // which spreads outliers (channel_scales.h).
  double balance = 0;
  // QServe's SmoothAttention (Lin et al. 2024): channels of k are divided, those of q multiplied by
  // max|k|^this, the same for both channels that RoPE turns into each other; 0 = not at all.
  double key_smoothing = 0;
  // SmoothAttention by k^this / q^(1 - this), with root mean squares, in front of a transform of
  // heads.
  double key_balance = 0;
  // Keys are stored without their mean behind RoPE (Plan::center_keys).
  bool center_keys = false;
  // QServe's smoothing of what o and down read, with SmoothQuant's formula and this alpha; 0 = not
  // at all. Not with online transforms, which mix those channels.
  double output_smoothing = 0;
  // AWQ's scales (Lin et al. 2023), of what norms, v and up give out: mean|x|^a, with that of so
  // many steps of a from 0 to 1 which leaves products the smallest error; 0 = not at all
  // (search_scales.h).
  int scale_steps = 0;
  // Weights are cut off where their products come closest before they are rounded, AWQ's search
  // (output_clips.h).
  bool output_clips = false;
  // OmniQuant (Shao et al. 2023): passes over calibration text in which each layer learns clips of
  // its weights, so that its output stays close to the float network's (train_block.h); 0 = none.
  // With learned_channels it learns scales of what its norms and v give out as well.
  int block_epochs = 0;
  bool learned_channels = false;
  // QuIP#'s fine-tuning within blocks (Tseng et al. 2024, section 5): passes over calibration text
  // after each input's linears have been rounded, in which the layer's other weights are tuned
  // (quantize/learn/tune_block.h); 0 = none.
  int tune_epochs = 0;
  // GPTQ (Frantar et al. 2022).
  bool act_order = false;  // columns by falling Hessian diagonal
  double damp = 0.01;      // share of the mean diagonal added before factoring
  // Calibrate on the inputs as the quantized network sees them (activation and cache quantization
  // on) instead of in fp32.
  bool quantized_calibration = false;
  // A cache of fewer than 8 bits has a recent form of 8 (formats/kv_format.h).
  bool recent = false;
  // The loss, in nats per token, that four bits instead of more may cost the cache: keys and values
  // of the layers where four bits cost least have them (choose_cache.h); 0 = none.
  double cache_loss = 0;
  // Share of the correction for the difference between the fp32 and the quantized input
  // (GptqRounding::correction; the objective of GPTAQ, Li et al. 2025); 0 = plain GPTQ.
  double gptaq = 0;
  // Share of what other columns' errors moved a weight by, taken back before it is rounded
  // (GptqRounding::pull; FOEM, Zheng et al. 2025); not for codes of a lattice.
  double foem = 0;
  // Groups of a linear's outputs for which tokens weigh what errors cost the predictions
  // (loss_weights.h; GuidedQuant, Kim et al. 2025); 0: all tokens alike.
  int loss_groups = 0;
  // Passes over the codes at the end, each chosen anew with all others given.
  int sweeps = 0;

  // Channels are scaled in front of a rotation by what calibration sees of them (channel_scales.h);
  // scales and orders behind it are those of channels.h.
  bool scales_channels() const { return smoothing > 0 || balance > 0 || scales_keys(); }
  bool scales_keys() const { return key_smoothing > 0 || key_balance > 0; }
  bool searches_scales() const { return scale_steps > 0; }
  // Returns whether some layers may have four bits in place of these.
  bool narrows(const FormatSpec& cached) const { return cache_loss > 0 && IsWideCache(cached); }
  bool chooses_cache() const { return narrows(k) || narrows(v); }
  bool coarse_keys() const { return k.bits < 8 || narrows(k); }
  // Bits of the recent form; 0: there is none.
  int recent_bits() const {
    return recent && (std::min(k.bits, v.bits) < 8 || chooses_cache()) ? 8 : 0;
  }
  // Cached keys lack their mean, which needs the same pass over the source.
  bool centers_keys() const { return center_keys && k.quantized(); }
  bool reads_keys() const { return scales_keys() || centers_keys(); }
  bool reads_source() const { return scales_channels() || centers_keys(); }
  bool arranges_channels() const { return output_smoothing > 0 || order != ChannelOrder::kNone; }
  // Returns whether weights are scaled, reordered or rotated before they are rounded.
  bool maps() const {
    return rotation != Rotation::kNone || scales_channels() || searches_scales() ||
           arranges_channels();
  }
  bool chooses_outliers() const { return tail_threshold > 0 || wide_inputs > 0; }
  bool transforms_online() const { return rotation != Rotation::kNone && online_transforms; }
  // Not where outputs are weighed in groups, or made in the order of what reads them.
  bool transforms_outputs() const {
    return output_transforms && transforms_online() && order == ChannelOrder::kNone &&
           loss_groups == 0;
  }
  bool falls_back() const {
    return fallback && transforms_online() && calibrates() && !arranges_channels();
  }
  bool learns_rotation() const { return learned_rotation && rotation != Rotation::kNone; }
  bool searches_clips() const {
    return activations.clip == 0 && (activations.quantized() || !rules.empty());
  }
  bool calibrates() const {
    return reads_source() || searches_scales() || output_clips || block_epochs > 0 ||
           arranges_channels() || learns_rotation() || searches_clips() || chooses_cache() ||
           rounding == Rounding::kGptq;
  }
};

extern const Recipe kRtnRecipe;
extern const Recipe kGptqRecipe;
extern const Recipe kQuarotRecipe;
extern const Recipe kQuarotPaperRecipe;
extern const Recipe kQuikRecipe;
extern const Recipe kAtomRecipe;
extern const Recipe kSmoothquantRecipe;
extern const Recipe kAwqRecipe;
extern const Recipe kOmniquantRecipe;
extern const Recipe kNibbleRecipe;
extern const Recipe kQserveRecipe;
extern const Recipe kQuipsharpRecipe;
extern const Recipe kW4a8Recipe;
extern const Recipe kStoredRecipe;

std::span<const Recipe* const> Recipes();
const Recipe& FindRecipe(std::string_view name);  // unknown: usage error listing the known ones

// The group of an input of `width`: `group` if it divides the width, else the largest multiple of
// 32 below that does (1376 = 32 * 43 inputs have groups of 32), or 0, the whole row. What is no
// multiple of 32 comes back as it is; the plan's checks refuse it.
int64_t FittingGroup(int64_t group, int64_t width);

// The tail of an input of `width`: the recipe's number, or where that is more than an eighth of
// hidden_size (no paper has more) its share of 4096; as a multiple of 32, and then widened until
// the recipe's groups divide the rest. Throws (usage) if they never do.
int64_t TailColumns(const Recipe& recipe, int64_t hidden_size, int64_t width);

// Returns whether the residual stream is rotated, and norms are folded into what reads them.
bool TurnsResidual(const ModelConfig& config, const Recipe& recipe);
// The transform of an input or of the residual stream that a rotation takes, but for kRandom of the
// latter. Throws (usage) where a width has no factors for kKronecker or is odd for kFourier.
TransformSpec TransformOf(Rotation rotation, int64_t width);
// Returns whether a user turned this field on.
bool Asks(const Recipe& recipe, std::string_view field);
// The recipe without what this model cannot have and nobody asked for: a learned rotation where the
// residual stream stays as it is, balance behind norms that are folded or missing, balance and
// means of keys that have 8 bits in every layer, and any balance without online transforms.
Recipe FittedTo(const ModelConfig& config, Recipe recipe);

// The recipe's formats rounded to nearest as the model is, without rotation, scales and orders.
Recipe PlainRecipe(Recipe recipe);

// Why the scales of such a recipe cannot be learned, whatever the network; empty: they can. It
// takes a rotation (which folds norms), GPTQ, and channels that are neither ordered nor scaled.
std::string_view WhyScaleTuningIsSkipped(const Recipe& recipe);

}  // namespace nibble
