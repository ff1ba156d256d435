// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/packed_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "io/atomic_file.h"
#include "io/sha256.h"
#include "models/checkpoint/manifest.h"
#include "models/checkpoint/tile_plane.h"
#include "tensor/finite.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";

std::string VectorOfLayer(int64_t layer, LayerVector norm) {
  return fmt::format("layers.{}.{}", layer, VectorName(norm));
}

// Reads the planes that a plan promises, each once.
class PlaneReader {
 public:
  PlaneReader(const FindTensor& find, const Plan& plan, const ModelConfig& config,
              const std::string& where)
      : find_(find), plan_(plan), config_(config), where_(where) {}

  PackedLinear Linear(int64_t layer, Role role) {
    const std::string name = LinearName(layer, role);
    const LinearPlan& spec = plan_.at(layer, role);
    const int64_t rows = config_.outputs(layer, role);
    PackedLinear linear;
    linear.input = spec.Input(config_.inputs(layer, role));
    linear.output_transform = spec.output_transform;
    linear.weights = Weights(name, spec.weights, rows, linear.input.main_width());
    if (spec.tail.columns > 0) {
      linear.tail = Weights(name + ".tail", spec.tail.weights, rows, spec.tail.columns);
    }
    if (spec.input_scales) {
      const std::string scales = name + ".input_scales";
      linear.input.scales = ToF32(Floats(scales, {linear.input.width})).data;
    }
    if (spec.gather) linear.input.gather = Gather(name + ".gather");
    if (config_.has_bias(role)) linear.bias = Get(name + ".bias");
    ValidateLinear(linear, where_ + ": " + name);
    return linear;
  }

  PackedWeights Table(Role role) {
    const std::string name = LinearName(0, role);
    const int64_t rows = config_.outputs(0, role), cols = config_.inputs(0, role);
    const PackedWeights w = Weights(name, plan_.at(0, role).weights, rows, cols);
    ValidateWeights(w, rows, cols, {}, where_ + ": " + name);
    if (w.values.data != nullptr) RequireFinite(w.values, where_ + ": " + name + ".weight");
    return w;
  }

  Tensor Floats(const std::string& name, std::vector<int64_t> shape) {
    const Tensor view = Get(name);
    if (view.shape != shape || !IsFloat(view.dtype)) {
      Fail("{}: tensor {} is {} {}, expected floats of shape {}", where_, name,
           DTypeName(view.dtype), ShapeText(view.shape), ShapeText(shape));
    }
    RequireFinite(view, where_ + ": " + name);
    return view;
  }

  LayerWeights Layer(int64_t index) {
    LayerWeights layer;
    for (Role role : config_.layer_roles(index)) layer[role] = Linear(index, role);
    RequireSharedInputs(config_, index, layer, where_);
    for (LayerVector norm : config_.layer_vectors(index)) {
      if (plan_.norms_folded && IsFoldable(norm)) continue;
      layer.vectors[norm] = Vector(index, norm);
    }
    if (plan_.center_keys && config_.spec(index).owns_kv()) {
      layer.vectors[LayerVector::kKeyCenter] = Vector(index, LayerVector::kKeyCenter);
    }
    return layer;
  }

  const std::set<std::string>& used() const { return used_; }

 private:
  Tensor Vector(int64_t layer, LayerVector vector) {
    return Floats(VectorOfLayer(layer, vector), {config_.width(layer, vector)});
  }

  PackedWeights Weights(const std::string& name, const FormatSpec& format, int64_t rows,
                        int64_t cols) {
    PackedWeights w = {.format = format.as_stored(), .rows = rows, .cols = cols};
    for (const Plane& plane : PlanesOf(w.format, rows, cols)) {
      w.*plane.tensor = Get(name + std::string(plane.suffix));
    }
    return w;
  }

  std::vector<int32_t> Gather(const std::string& name) {
    const Tensor view = Get(name);
    if (view.dtype != DType::kI32) {
      Fail("{}: tensor {} is {}, expected I32", where_, name, DTypeName(view.dtype));
    }
    return view.Copy<int32_t>();
  }

  Tensor Get(const std::string& name) {
    const Tensor* view = find_(name);
    if (view == nullptr) Fail("{}: tensor {} is missing", where_, name);
    used_.insert(name);
    return *view;
  }

  const FindTensor& find_;
  const Plan& plan_;
  const ModelConfig& config_;
  const std::string& where_;
  std::set<std::string> used_;
};

void CheckDigest(const Network& net, const Plan& plan) {
  const std::string expected = PlanDigest(plan);
  for (const SafetensorsFile& file : net.store->files()) {
    const auto it = file.metadata().find(kPlanDigestKey);
    if (it == file.metadata().end() || it->second != expected) {
      Fail(
          "{}: these weights were made for another plan than the one in config.json (formats and "
          "online transforms must not be edited); quantize again",
          file.path());
    }
  }
}

constexpr const char* kContentDigestKey = "content_sha256";

// The digest of names, types, shapes and bytes of the tensors and of the metadata but for the
// digest itself.
std::string ContentDigest(const std::map<std::string, Tensor>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  Json content = {{"metadata", metadata}};
  content["metadata"].erase(kContentDigestKey);
  for (const auto& [name, view] : tensors) {
    content["tensors"][name] = {DTypeName(view.dtype), view.shape,
                                Sha256({view.data, view.bytes()})};
  }
  return Sha256Text(content.dump());
}

}  // namespace

void LoadPacked(Network& net, const Json& quantization_config, const std::string& where) {
  const ModelConfig& c = net.config;
  const Plan plan = PlanFromJson(quantization_config, c, where);
  CheckDigest(net, plan);
  net.caches = LayerCaches(c, plan);
  const FindTensor find = [&](const std::string& name) { return net.store->Find(name); };
  PlaneReader planes(find, plan, c, net.directory);
  net.embedding = planes.Table(Role::kEmbedding);
  if (plan.tied_head) {
    const LinearPlan& head = plan.at(0, Role::kHead);
    net.head = {.weights = net.embedding, .input = head.Input(c.hidden_size)};
    ValidateLinear(net.head, net.directory + ": head");
    if (plan.head_rotation) {
      const int64_t hidden = c.hidden_size;
      net.head_rotation = {.weights = {.format = {.bits = 32},
                                       .rows = hidden,
                                       .cols = hidden,
                                       .values = planes.Floats("head_turn", {hidden, hidden})},
                           .input = {.width = hidden}};
    } else if (plan.norms_folded) {
      net.head_unrotation = {.width = c.hidden_size,
                             .transform = Inverse(head.input_transform),
                             .transform_bits = head.transform_bits};
    }
  } else {
    net.head = planes.Linear(0, Role::kHead);
  }
  if (!plan.norms_folded || (plan.tied_head && !plan.head_rotation)) {
    net.final_norm = planes.Floats("final_norm", {c.hidden_size});
  }
  if (c.layer_input_size > 0) {
    net.layer_table = planes.Table(Role::kLayerTable);
    net.layer_projection = planes.Linear(0, Role::kLayerProjection);
    net.layer_input_norm = planes.Floats("layer_input_norm", {c.layer_input_size});
  }
  if (c.learned_positions) net.positions = planes.Floats("positions", {c.context, c.hidden_size});
  for (int64_t i = 0; i < c.layers; ++i) net.layers.push_back(planes.Layer(i));
  for (const std::string& name : net.store->names()) {
    if (!planes.used().contains(name)) {
      Fail("{}: tensor {} is not part of the plan in config.json", net.directory, name);
    }
  }
}

void RequireSharedInputs(const ModelConfig& config, int64_t index, const LayerWeights& layer,
                         const std::string& where) {
  const auto require = [&](Role a, Role b) {
    const InputSpec &x = layer[a].input, &y = layer[b].input;
    if (x.gather == y.gather && x.scales == y.scales) return;
    const std::string_view plane = x.gather == y.gather ? "input_scales" : "gather";
    Fail("{}: {}.{} and {}.{} differ", where, LinearName(index, a), plane, LinearName(index, b),
         plane);
  };
  for (Role role : config.layer_roles(index)) {
    if (role == Role::kK || role == Role::kV) require(Role::kQ, role);
    if (KindOf(role) == Role::kUp) require(OfExpert(Role::kGate, ExpertOf(role)), role);
  }
}

LayerWeights ReadPackedLayer(const FindTensor& find, const Plan& plan, const ModelConfig& config,
                             int64_t index, const std::string& where) {
  return PlaneReader(find, plan, config, where).Layer(index);
}

std::vector<NamedTensor> LinearTensors(const std::string& name, const PackedLinear& linear) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& part, const PackedWeights& w) {
    for (const Plane& plane : PlanesOf(w.format, w.rows, w.cols)) {
      tensors.push_back({name + part + std::string(plane.suffix), w.*plane.tensor});
    }
  };
  add("", linear.weights);
  if (linear.tail.cols > 0) add(".tail", linear.tail);
  if (linear.bias.data != nullptr) tensors.push_back({name + ".bias", linear.bias});
  const std::vector<float>& scales = linear.input.scales;
  if (!scales.empty()) {
    const auto count = static_cast<int64_t>(scales.size());
    tensors.push_back({name + ".input_scales", Tensor::Of(DType::kF32, {count}, scales)});
  }
  const std::vector<int32_t>& gather = linear.input.gather;
  if (!gather.empty()) {
    const auto count = static_cast<int64_t>(gather.size());
    tensors.push_back({name + ".gather", Tensor::Of(DType::kI32, {count}, gather)});
  }
  return tensors;
}

std::vector<NamedTensor> LayerTensors(int64_t index, const LayerWeights& layer) {
  std::vector<NamedTensor> tensors;
  for (const auto& [role, linear] : layer.linears) {
    for (NamedTensor& t : LinearTensors(LinearName(index, role), linear)) {
      tensors.push_back(std::move(t));
    }
  }
  for (const auto& [norm, weight] : layer.vectors) {
    if (weight.data != nullptr) tensors.push_back({VectorOfLayer(index, norm), weight});
  }
  return tensors;
}

void WriteShard(const std::string& path, const std::vector<NamedTensor>& tensors,
                std::map<std::string, std::string> metadata) {
  // Wider elements first keep every plane aligned to its element size.
  std::vector<NamedTensor> ordered = tensors;
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return DTypeBytes(a.view.dtype) > DTypeBytes(b.view.dtype);
  });
  std::vector<SafetensorsWriter::Entry> entries;
  std::map<std::string, Tensor> by_name;
  for (const NamedTensor& t : ordered) {
    entries.push_back({t.name, t.view.dtype, t.view.shape});
    by_name[t.name] = t.view;
    if (!IsFloat(t.view.dtype)) continue;
    RequireFinite(t.view, fmt::format("{}: {}: weights too large for its format", path, t.name));
  }
  metadata[kContentDigestKey] = ContentDigest(by_name, metadata);
  SafetensorsWriter writer(path, entries, metadata);
  for (const NamedTensor& t : ordered) writer.Append({t.view.data, t.view.bytes()});
  writer.Finish();
}

std::optional<SafetensorsFile> OpenWholeShard(const std::string& path) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    SafetensorsFile file(path);
    const auto digest = file.metadata().find(kContentDigestKey);
    const bool whole = digest != file.metadata().end() &&
                       digest->second == ContentDigest(file.tensors(), file.metadata());
    if (whole) return file;
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::string LayerShardName(int64_t layer) {
  return fmt::format("layer-{:05}.safetensors", layer);
}

bool IsCheckpointFile(std::string_view name) {
  constexpr std::array kOthers = {"config.json", kProvenanceName, kManifestName,
                                  kIndexName,    kRestShardName,  kTilesName};
  if (std::ranges::find(kOthers, name) != kOthers.end()) return true;
  if (std::ranges::find(kCompanions, name) != kCompanions.end()) return true;
  const std::string some = LayerShardName(0), prefix = some.substr(0, some.find('0'));
  int64_t layer = -1;
  if (!name.starts_with(prefix)) return false;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer >= 0 && name == LayerShardName(layer);
}

void WriteIndex(const std::string& directory, int64_t layers) {
  Json map = Json::object();
  uint64_t total = 0;
  const auto add = [&](const std::string& shard) {
    const SafetensorsFile file((fs::path(directory) / shard).string());
    for (const auto& [name, view] : file.tensors()) {
      map[name] = shard;
      total += view.bytes();
    }
  };
  add(kRestShardName);
  for (int64_t i = 0; i < layers; ++i) add(LayerShardName(i));
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  WriteFileAtomic((fs::path(directory) / kIndexName).string(), index.dump(2) + "\n");
}

}  // namespace nibble
