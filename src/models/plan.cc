// SPDX-License-Identifier: Apache-2.0
#include "models/plan.h"

#include <algorithm>

#include "io/sha256.h"

namespace nibble {
namespace {

// `transform_bits`, `input_scales`, `gather`, `tail` and `output_transform` are only written where
// there are some.
Json LinearToJson(const LinearPlan& linear) {
  Json json = {{"weights", ToJson(linear.weights)},
               {"activations", ToJson(linear.activations)},
               {"input_transform", ToJson(linear.input_transform)}};
  if (linear.transform_bits != 0) json["transform_bits"] = linear.transform_bits;
  if (linear.input_scales) json["input_scales"] = true;
  if (linear.gather) json["gather"] = true;
  if (!linear.output_transform.identity()) {
    json["output_transform"] = ToJson(linear.output_transform);
  }
  if (linear.tail.columns == 0) return json;
  json["tail"] = {{"columns", linear.tail.columns},
                  {"weights", ToJson(linear.tail.weights)},
                  {"activations", ToJson(linear.tail.activations)}};
  return json;
}

TailPlan TailFromJson(const Json& json, const std::string& where) {
  RefuseUnknownFields(json, {"columns", "weights", "activations"}, where);
  return {.columns = JsonGet<int64_t>(json, "columns", where),
          .weights = FormatFromJson(JsonGet<Json>(json, "weights", where), where),
          .activations = FormatFromJson(JsonGet<Json>(json, "activations", where), where)};
}

LinearPlan LinearFromJson(const Json& json, const std::string& where) {
  RefuseUnknownFields(json,
                      {"weights", "activations", "input_scales", "input_transform",
                       "transform_bits", "gather", "tail", "output_transform"},
                      where);
  LinearPlan plan = {
      .weights = FormatFromJson(JsonGet<Json>(json, "weights", where), where),
      .activations = FormatFromJson(JsonGet<Json>(json, "activations", where), where),
      .input_scales = JsonFind<bool>(json, "input_scales", where).value_or(false),
      .input_transform = TransformFromJson(JsonGet<Json>(json, "input_transform", where), where),
      .transform_bits = JsonFind<int>(json, "transform_bits", where).value_or(0),
      .gather = JsonFind<bool>(json, "gather", where).value_or(false)};
  if (const auto tail = JsonFind<Json>(json, "tail", where)) {
    plan.tail = TailFromJson(*tail, where + ".tail");
    if (plan.tail.columns < 1) Fail("{}: a tail of {} columns", where, plan.tail.columns);
  }
  if (const auto transform = JsonFind<Json>(json, "output_transform", where)) {
    plan.output_transform = TransformFromJson(*transform, where + ".output_transform");
  }
  return plan;
}

Json CacheToJson(const Plan& plan) {
  Json json = {{"k", ToJson(plan.k)},
               {"v", ToJson(plan.v)},
               {"rotation", ToJson(plan.kv_rotation)},
               {"page_tokens", kPageTokens}};
  if (plan.center_keys) json["centered"] = true;
  if (plan.recent_bits > 0) json["recent_bits"] = plan.recent_bits;
  for (const auto& [layer, formats] : plan.layer_caches) {
    json["layers"][std::to_string(layer)] = {{"k", ToJson(formats.k)}, {"v", ToJson(formats.v)}};
  }
  return json;
}

CacheFormats CacheFormatsFromJson(const Json& json, const std::string& where) {
  return {.k = FormatFromJson(JsonGet<Json>(json, "k", where), where),
          .v = FormatFromJson(JsonGet<Json>(json, "v", where), where)};
}

std::map<int64_t, CacheFormats> LayerCachesFromJson(const Json& json, const ModelConfig& config,
                                                    const std::string& where) {
  std::map<int64_t, CacheFormats> caches;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = std::to_string(layer), in = where + "." + name;
    const auto formats = JsonFind<Json>(json, name, where);
    if (!formats) continue;
    if (!config.spec(layer).owns_kv()) Fail("{}: this layer has no cache of its own", in);
    RefuseUnknownFields(*formats, {"k", "v"}, in);
    caches[layer] = CacheFormatsFromJson(*formats, in);
  }
  if (caches.size() != json.size()) {
    Fail("{}: {} layers, and the model has {} of them", where, json.size(), caches.size());
  }
  return caches;
}

void CheckFormats(const FormatSpec& weights, const FormatSpec& activations, int64_t width,
                  const std::string& where) {
  for (const FormatSpec* format : {&weights, &activations}) {
    if (format->group != 0 && (format->group % 32 != 0 || width % format->group != 0)) {
      Fail("{}: group {} must be a multiple of 32 that divides the width {}", where, format->group,
           width);
    }
  }
  const int64_t w = weights.group, a = activations.group;
  if (w != 0 && a != 0 && w % a != 0 && a % w != 0) {
    Fail("{}: weight group {} and activation group {} do not divide each other", where, w, a);
  }
  if (activations.quantized() && activations.clip <= 0) {
    Fail("{}: activations need a clip above 0", where);
  }
  if (weights.signed_scale) Fail("{}: only activations have signed scales", where);
  if (activations.sparse) Fail("{}: only weights are sparse", where);
  if (activations.codebook != Codebook::kNone) Fail("{}: only weights have a codebook", where);
  if (weights.in_blocks() && width % 8 != 0) {
    Fail("{}: weights of {} need a multiple of 8 inputs, not {}", where, FormatText(weights),
         width);
  }
  if (activations.bits == 32) Fail("{}: activations that are not quantized have 16 bits", where);
  if (activations.second_level) Fail("{}: only weights have two levels of scales", where);
  if (weights.second_level && activations.quantized() && a != 0) {
    Fail("{}: weights with two levels of scales take activations without groups", where);
  }
}

void CheckLinear(const LinearPlan& plan, int64_t width, int64_t outputs, const std::string& where) {
  const TailPlan& tail = plan.tail;
  if (tail.columns >= width) {
    Fail("{}: a tail of {} columns of {}", where, tail.columns, width);
  }
  CheckFormats(plan.weights, plan.activations, width - tail.columns, where);
  if (tail.columns > 0) CheckFormats(tail.weights, tail.activations, tail.columns, where + ".tail");
  if (!plan.input_transform.identity() && plan.input_transform.width() != width) {
    Fail("{}: online transform of width {} on an input of width {}", where,
         plan.input_transform.width(), width);
  }
  if (!plan.output_transform.identity() && plan.output_transform.width() != outputs) {
    Fail("{}: online transform of width {} on {} outputs", where, plan.output_transform.width(),
         outputs);
  }
  if (plan.transform_bits == 0) return;
  if (plan.transform_bits != 16 && plan.transform_bits != 32) {
    Fail("{}: transform_bits is 16 or 32, not {}", where, plan.transform_bits);
  }
  if (plan.input_transform.identity()) Fail("{}: transform_bits without a transform", where);
}

// The embedding is looked up: nothing is prepared for it. A head that shares its table has the
// same weights.
void CheckTables(const Plan& plan, const ModelConfig& config, const std::string& where) {
  const LinearPlan &embedding = plan.at(0, Role::kEmbedding), &head = plan.at(0, Role::kHead);
  for (const Role role : config.model_roles()) {
    const LinearPlan& table = plan.at(0, role);
    if (role == Role::kHead || table == LinearPlan{.weights = table.weights}) continue;
    Fail("{}: {}: it has weights only", where, LinearName(0, role));
  }
  if (plan.head_rotation &&
      !(plan.tied_head && plan.norms_folded && head.input_transform.identity())) {
    Fail("{}: head_turn goes with tied_head, norms_folded and no transform of the head's input",
         where);
  }
  if (!plan.tied_head) return;
  if (!config.tied_head) Fail("{}: tied_head: the model has two tables", where);
  if (head.weights != embedding.weights || head.tail.columns > 0 || head.gather ||
      head.input_scales) {
    Fail("{}: tied_head: head and embedding have different formats", where);
  }
}

// q/k/v and gate/up read one prepared input.
void CheckSharedInputs(const Plan& plan, int64_t layer, const ModelConfig& config,
                       const std::string& where) {
  std::vector<std::pair<Role, Role>> shared;
  for (Role role : config.layer_roles(layer)) {
    if (role == Role::kK || role == Role::kV) shared.emplace_back(Role::kQ, role);
    const Role gate = OfExpert(Role::kGate, ExpertOf(role));
    if (KindOf(role) == Role::kUp) shared.emplace_back(gate, role);
  }
  for (const auto& [first, second] : shared) {
    const LinearPlan &a = plan.at(layer, first), &b = plan.at(layer, second);
    if (a.activations == b.activations && a.input_transform == b.input_transform &&
        a.transform_bits == b.transform_bits && a.input_scales == b.input_scales &&
        a.gather == b.gather && a.tail.columns == b.tail.columns &&
        a.tail.activations == b.tail.activations) {
      continue;
    }
    Fail("{}: {} and {} must prepare their shared input alike: activations, tail and order", where,
         LinearName(layer, first), LinearName(layer, second));
  }
}

void CheckCacheFormat(const FormatSpec& format, int64_t head_dim, const std::string& where) {
  if (format.group != 0 && head_dim % format.group != 0) {
    Fail("{}: cache group {} does not divide head_dim {}", where, format.group, head_dim);
  }
  if (format.quantized() && format.clip <= 0) Fail("{}: the cache needs a clip above 0", where);
  if (format.signed_scale || format.second_level || format.sparse) {
    Fail("{}: signed or two-level scales and sparsity are not for a cache", where);
  }
}

void CheckCache(const Plan& plan, const ModelConfig& config, const std::string& where) {
  for (const KvSpec& cache : LayerCaches(config, plan)) {
    for (const FormatSpec& format : {plan.k, plan.v, cache.k, cache.v}) {
      CheckCacheFormat(format, cache.head_dim, where);
    }
  }
  if (plan.recent_bits < 0 || plan.recent_bits > 8) {
    Fail("{}: the recent form has 1 to 8 bits, not {}", where, plan.recent_bits);
  }
  if (plan.center_keys && !config.centers_keys()) {
    Fail("{}: keys cannot be centered where scores are capped or have sinks", where);
  }
  if (!plan.kv_rotation.identity() && plan.kv_rotation.width() != config.head_dim) {
    Fail("{}: cache rotation of width {}, heads of {}", where, plan.kv_rotation.width(),
         config.head_dim);
  }
}

}  // namespace

InputSpec LinearPlan::Input(int64_t width) const {
  // Without codes a clip, a symmetry or groups mean nothing, whatever a plan says of them.
  const auto prepared = [](const FormatSpec& format) {
    return format.quantized() ? format : FormatSpec{.bits = format.bits};
  };
  return {.width = width,
          .scales = {},
          .transform = input_transform,
          .transform_bits = transform_bits,
          .gather = {},
          .activations = prepared(activations),
          .tail_width = tail.columns,
          .tail_activations = prepared(tail.activations)};
}

bool MayTransformOutputs(const ModelConfig& config, Role role) {
  switch (role) {
    case Role::kO:
      return config.has(LayerVector::kPostAttentionNorm);
    case Role::kDown:
      return config.has(config.dense_beside_experts ? LayerVector::kPostDenseNorm
                                                    : LayerVector::kPostMlpNorm);
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return true;
    default:
      return KindOf(role) == Role::kGate || KindOf(role) == Role::kUp;
  }
}

const LinearPlan& Plan::at(int64_t layer, Role role) const {
  const auto it = linears.find(LinearName(layer, role));
  NIBBLE_CHECK(it != linears.end(), "no plan for {}", LinearName(layer, role));
  return it->second;
}

bool RoundsLayers(const Plan& plan) {
  return std::ranges::any_of(plan.linears, [](const auto& linear) {
    return linear.first.starts_with("layers.") && linear.second.weights.quantized();
  });
}

Json ToJson(const Plan& plan) {
  Json linears = Json::object();
  for (const auto& [name, linear] : plan.linears) linears[name] = LinearToJson(linear);
  Json json = {{"quant_method", "nibble"},
               {"format_version", Plan::kVersion},
               {"provenance", plan.provenance},
               {"norms_folded", plan.norms_folded},
               {"tied_head", plan.tied_head},
               {"cache", CacheToJson(plan)},
               {"linears", linears}};
  if (plan.head_rotation) json["head_turn"] = true;
  return json;
}

Plan PlanFromJson(const Json& json, const ModelConfig& config, const std::string& where) {
  const auto method = JsonGet<std::string>(json, "quant_method", where);
  if (method != "nibble") {
    Fail("{}: quant_method \"{}\" cannot be read; start from the unquantized model", where, method);
  }
  const int version = JsonGet<int>(json, "format_version", where);
  if (version != Plan::kVersion) {
    Fail(
        "{}: format version {}, this build reads {}; make the checkpoint again with `nibble "
        "quantize MODEL -o OUT`",
        where, version, Plan::kVersion);
  }
  RefuseUnknownFields(json,
                      {"quant_method", "format_version", "provenance", "norms_folded", "tied_head",
                       "head_turn", "cache", "linears"},
                      where);
  Plan plan;
  plan.provenance = JsonGet<Json>(json, "provenance", where);
  plan.norms_folded = JsonGet<bool>(json, "norms_folded", where);
  plan.tied_head = JsonGet<bool>(json, "tied_head", where);
  plan.head_rotation = JsonFind<bool>(json, "head_turn", where).value_or(false);
  const Json cache = JsonGet<Json>(json, "cache", where);
  const std::string in_cache = where + ": cache";
  RefuseUnknownFields(
      cache, {"k", "v", "layers", "rotation", "centered", "recent_bits", "page_tokens"}, in_cache);
  if (JsonGet<int64_t>(cache, "page_tokens", in_cache) != kPageTokens) {
    Fail("{}: this build has pages of {} tokens", in_cache, kPageTokens);
  }
  const CacheFormats formats = CacheFormatsFromJson(cache, in_cache);
  plan.k = formats.k, plan.v = formats.v;
  if (const auto layers = JsonFind<Json>(cache, "layers", in_cache)) {
    plan.layer_caches = LayerCachesFromJson(*layers, config, in_cache + ".layers");
  }
  plan.kv_rotation = TransformFromJson(JsonGet<Json>(cache, "rotation", in_cache), in_cache);
  plan.center_keys = JsonFind<bool>(cache, "centered", in_cache).value_or(false);
  plan.recent_bits = JsonFind<int>(cache, "recent_bits", in_cache).value_or(0);
  CheckCache(plan, config, in_cache);
  const Json linears = JsonGet<Json>(json, "linears", where);
  const auto add = [&](int64_t layer, Role role) {
    const std::string name = LinearName(layer, role), in = where + ": " + name;
    plan.linears[name] = LinearFromJson(JsonGet<Json>(linears, name, where + ": linears"), in);
    const LinearPlan* const fixed = FixedPlan(role);
    if (fixed != nullptr && plan.linears[name] != *fixed) {
      Fail("{} stays at {} bits", in, fixed->weights.bits);
    }
    CheckLinear(plan.linears[name], config.inputs(layer, role), config.outputs(layer, role), in);
    if (!plan.linears[name].output_transform.identity() && !MayTransformOutputs(config, role)) {
      Fail("{}: nothing transforms the outputs of this linear", in);
    }
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : config.layer_roles(layer)) add(layer, role);
    CheckSharedInputs(plan, layer, config, where);
  }
  for (Role role : config.model_roles()) add(0, role);
  CheckTables(plan, config, where);
  if (linears.size() != plan.linears.size()) {
    Fail("{}: {} linears planned, the model has {}", where, linears.size(), plan.linears.size());
  }
  return plan;
}

KvSpec LayerCache(const ModelConfig& config, const Plan& plan, int64_t layer) {
  const HeadShape heads = config.head_shape(layer);
  const LayerSpec spec = config.spec(layer);
  const auto own = plan.layer_caches.find(spec.owns_kv() ? layer : spec.kv_layer);
  const CacheFormats formats =
      own == plan.layer_caches.end() ? CacheFormats{plan.k, plan.v} : own->second;
  KvSpec cache = {.kv_heads = heads.kv_heads,
                  .head_dim = heads.head_dim,
                  .k = formats.k,
                  .v = formats.v,
                  .rotation = plan.kv_rotation};
  if (std::min(cache.k.bits, cache.v.bits) < plan.recent_bits) cache.recent_bits = plan.recent_bits;
  if (heads.head_dim != config.head_dim && !cache.rotation.identity()) {
    cache.rotation = FullHadamard(heads.head_dim);
  }
  return cache;
}

std::vector<KvSpec> LayerCaches(const ModelConfig& config, const Plan& plan) {
  std::vector<KvSpec> caches;
  for (int64_t i = 0; i < config.layers; ++i) caches.push_back(LayerCache(config, plan, i));
  return caches;
}

std::vector<KvSpec> FinestLayerCaches(const ModelConfig& config, const Plan& plan) {
  std::vector<KvSpec> caches = LayerCaches(config, plan);
  for (KvSpec& cache : caches) cache = cache.Recent();
  return caches;
}

const KvSpec& LargestCache(std::span<const KvSpec> caches) {
  return *std::ranges::max_element(caches, {}, &KvSpec::page_bytes);
}

std::string PlanDigest(const Plan& plan) {
  Json json = ToJson(plan);
  json.erase("provenance");
  json["cache"].erase("layers");
  json["cache"].erase("recent_bits");
  return Sha256Text(json.dump());
}

}  // namespace nibble
