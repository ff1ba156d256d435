// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "apps/cli/cli.h"
#include "apps/cli/inspect_kernels.h"
#include "apps/cli/linear_rows.h"
#include "base/progress.h"
#include "engine/kv_groups.h"
#include "engine/pooling.h"
#include "models/checkpoint/manifest.h"
#include "models/import/open_network.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/round_network.h"
#include "source/model_source.h"
#include "source/pooling_document.h"

namespace nibble::cli {
namespace {

struct InspectArguments {
  std::string model;
  int load_bits = 8;
  bool kernels = false, verify = false;
};

// A network as it runs and, if it is rounded while it is loaded, as its files have it.
struct Inspected {
  Network net;
  std::optional<Network> source;
  bool one_table = false;  // head and embedding share a table
  Json plan;               // of a checkpoint, or of the rounding while it is loaded

  const Network& file() const { return source ? *source : net; }
};

Inspected Inspect(const std::string& model, int load_bits) {
  Inspected result;
  Network network = OpenNetwork(model);
  if (network.packed || load_bits == 32) {
    if (network.packed) result.plan = network.config_json["quantization_config"];
    result.one_table = network.one_table();
    result.net = std::move(network);
    return result;
  }
  const Plan plan = MakePlan(network, LoadingRecipe(load_bits, !network.stored_codes.empty()));
  result.plan = ToJson(plan);
  result.one_table = plan.tied_head;
  result.net = PlannedNetwork(network, plan);
  result.source = std::move(network);
  return result;
}

// The bytes of the weights' planes, of planned ones as well.
double Bytes(const PackedWeights& weights) {
  if (weights.bytes() > 0 || weights.cols == 0) return static_cast<double>(weights.bytes());
  double bytes = 0;
  for (const Plane& plane : PlanesOf(weights.format, weights.rows, weights.cols)) {
    bytes += static_cast<double>(plane.bytes());
  }
  return bytes;
}

struct Sizes {
  double quantized_bytes = 0, quantized_weights = 0, other_bytes = 0;
  double bits_per_weight() const {
    return quantized_weights > 0 ? 8 * quantized_bytes / quantized_weights : 0;
  }
};

Sizes MeasureSizes(const Network& net, bool one_table) {
  Sizes sizes;
  const auto add = [&](const PackedLinear& linear) {
    const PackedWeights& w = linear.weights;
    const auto gather = static_cast<double>(linear.input.gather.size() * sizeof(int32_t));
    const double bytes = Bytes(w) + Bytes(linear.tail) + gather;
    if (w.format.quantized()) {
      sizes.quantized_bytes += bytes;
      sizes.quantized_weights += static_cast<double>(w.rows * linear.input.width);
    } else {
      sizes.other_bytes += bytes;
    }
  };
  for (const LayerWeights& layer : net.layers) {
    for (const auto& [role, linear] : layer.linears) add(linear);
  }
  sizes.other_bytes += Bytes(net.head.weights);
  if (!one_table) sizes.other_bytes += Bytes(net.embedding);
  sizes.other_bytes += Bytes(net.layer_table) + Bytes(net.layer_projection.weights);
  return sizes;
}

// The bytes of the cache per token, before and behind the longest window, and of the recent form of
// a text.
struct CacheBytes {
  double first, later, recent;
};
CacheBytes MeasureCache(const Network& net) {
  const KvGroups groups(net.config, net.caches);
  int64_t see_all = 0, recent = 0;
  for (int64_t g = 0; g < groups.count(); ++g) {
    see_all += groups.sees_all(g), recent += groups.recent(g);
  }
  const auto page = static_cast<double>(groups.page_bytes());
  const auto of_token = [&](int64_t count) {
    return page / kPageTokens * static_cast<double>(count);
  };
  return {of_token(groups.count() - recent), of_token(see_all),
          page * static_cast<double>(recent * kMaxRecentPages)};
}

std::string KeysText(const Network& net) {
  const bool centered = net.layers[0].vectors.contains(LayerVector::kKeyCenter);
  return CacheText(net.caches, &KvSpec::k) + (centered ? " less their mean" : "");
}

// The bytes of a file's tensors by type, the type with most bytes first.
std::vector<std::pair<std::string, double>> FileTypes(const TensorStore& store) {
  std::map<std::string, double> bytes;
  for (const std::string& name : store.names()) {
    const Tensor& tensor = store.Get(name);
    bytes[DTypeName(tensor.dtype)] += static_cast<double>(tensor.bytes());
  }
  std::vector<std::pair<std::string, double>> types(bytes.begin(), bytes.end());
  std::ranges::stable_sort(types, std::greater(), &std::pair<std::string, double>::second);
  return types;
}

// "96.4 MB: 88.5 MB Q4_1, 7.9 MB F32".
std::string FileText(const TensorStore& store) {
  std::vector<std::string> parts;
  for (const auto& [type, bytes] : FileTypes(store)) {
    parts.push_back(fmt::format("{} {}", BytesText(bytes), type));
  }
  return fmt::format("{}: {}", BytesText(static_cast<double>(store.total_bytes())),
                     fmt::join(parts, ", "));
}

// The format that a file has a linear in: its tensor's type, or the format of its codes.
std::string SourceCell(const PackedWeights& weights) {
  return weights.format.quantized() ? FormatText(weights.format) : DTypeName(weights.values.dtype);
}

std::vector<std::string> FormatCells(const PackedLinear& l) {
  const InputSpec& in = l.input;
  return {fmt::format("{} x {}", l.weights.rows, in.width),
          TailedText(l.weights.format, in.tail_width, l.tail.format),
          TailedText(in.activations, in.tail_width, in.tail_activations),
          OnlineText(!in.scales.empty(), in.transform, in.transform_bits, !in.gather.empty(),
                     l.output_transform)};
}

using Rows = std::vector<std::vector<std::string>>;

// [linear, shape, type in the file unless it is Nibble's, formats as it runs].
Rows FormatRows(const Inspected& model) {
  const Network &net = model.net, &file = model.file();
  Rows rows = {{"linear", "shape", "weights", "activations", "online transform"}};
  if (!file.packed) rows[0].insert(rows[0].begin() + 2, "in the file");
  const auto cells = [&](const PackedLinear& linear, const PackedWeights& source) {
    std::vector<std::string> row = FormatCells(linear);
    if (!file.packed) row.insert(row.begin() + 1, SourceCell(source));
    return row;
  };
  AddLinearRows(
      net.config,
      [&](int64_t layer, Role role) {
        const auto i = static_cast<size_t>(layer);
        return cells(net.layers[i][role], file.layers[i][role].weights);
      },
      rows);
  const auto add = [&](const char* name, const PackedLinear& table, const PackedWeights& source) {
    rows.push_back({name});
    for (std::string& cell : cells(table, source)) rows.back().push_back(std::move(cell));
  };
  const auto add_table = [&](const char* name, PackedWeights Network::*table) {
    const PackedWeights& weights = net.*table;
    add(name, {.weights = weights, .input = {.width = weights.cols}}, file.*table);
  };
  add(model.one_table ? "head, embedding" : "head", net.head, file.head.weights);
  if (!model.one_table) add_table("embedding", &Network::embedding);
  if (net.config.layer_input_size > 0) {
    add_table("layer_table", &Network::layer_table);
    add("layer_projection", net.layer_projection, file.layer_projection.weights);
  }
  return rows;
}

uint64_t TileBytes(const Network& net) {
  uint64_t bytes = 0;
  if (!net.tiles) return bytes;
  for (const auto& [name, view] : net.tiles->tensors()) bytes += view.bytes();
  return bytes;
}

// The state of a Nibble checkpoint's tile plane.
std::string TilesText(const Network& net) {
  if (!net.tiles_refused.empty()) return "not used: " + net.tiles_refused;
  if (!net.tiles) return "none (`nibble repack` makes one)";
  return fmt::format("{}, used in place", BytesText(static_cast<double>(TileBytes(net))));
}

void PrintUnread(const UnreadKeys& unread) {
  if (!unread.answers.empty()) {
    fmt::print("not read           {} (answers depend on them)\n", fmt::join(unread.answers, ", "));
  }
  if (!unread.unknown.empty()) {
    fmt::print("not known          {}\n", fmt::join(unread.unknown, ", "));
  }
}

void PrintSizes(const Inspected& model, int load_bits) {
  const Network& net = model.net;
  const Sizes sizes = MeasureSizes(net, model.one_table);
  const std::string_view codes = net.stored_codes;
  if (!net.packed) fmt::print("in the file        {}\n", FileText(*model.file().store));
  if (!codes.empty()) fmt::print("codes              {}'s, as stored\n", codes);
  if (model.source) {
    fmt::print("as it runs         {} to {} bits while it is loaded (--load-bits)\n",
               codes.empty() ? "rounded" : "other weights rounded", load_bits);
  }
  if (sizes.quantized_weights > 0) {
    fmt::print("quantized linears  {} ({:.2f} bits per weight)\n", BytesText(sizes.quantized_bytes),
               sizes.bits_per_weight());
  }
  fmt::print("other tensors      {}\n", BytesText(sizes.other_bytes));
  if (net.packed) fmt::print("tile plane         {}\n", TilesText(net));
}

void PrintNetwork(const Inspected& model, int load_bits) {
  const Network& net = model.net;
  const ModelConfig& c = net.config;
  const std::string pooling = PoolingText(net.directory);
  fmt::print(
      "{}: {} model, {:.1f} M parameters, {} layers, hidden {}, {} heads / {} kv heads of {}, "
      "ffn {}, vocabulary {}, context {}\n",
      net.directory, c.family, static_cast<double>(c.parameters()) / 1e6, c.layers, c.hidden_size,
      c.heads, c.kv_heads, c.head_dim, c.ffn_size(), c.vocab_size, c.context);
  PrintSizes(model, load_bits);
  if (!pooling.empty()) fmt::print("embeddings         {}\n", pooling);
  PrintUnread(model.file().unread);
  const auto [first, later, recent] = MeasureCache(net);
  fmt::print("KV cache           {} per token{}{}; K {}, V {}; rotation {}\n\n", BytesText(first),
             later < first ? fmt::format(", {} behind the windows", BytesText(later)) : "",
             recent > 0 ? fmt::format(", and {} of a text", BytesText(recent)) : "", KeysText(net),
             CacheText(net.caches, &KvSpec::v), TransformText(net.caches[0].rotation));
  fmt::print("{}", Table(FormatRows(model)));
}

Json NetworkJson(const Inspected& model) {
  const Network& net = model.net;
  const ModelConfig& c = net.config;
  const Sizes sizes = MeasureSizes(net, model.one_table);
  const CacheBytes cache = MeasureCache(net);
  Json json = {{"family", c.family},
               {"parameters", c.parameters()},
               {"layers", c.layers},
               {"hidden_size", c.hidden_size},
               {"intermediate_size", c.ffn_size()},
               {"heads", c.heads},
               {"kv_heads", c.kv_heads},
               {"head_dim", c.head_dim},
               {"vocab_size", c.vocab_size},
               {"context", c.context},
               {"quantized_bytes", sizes.quantized_bytes},
               {"bits_per_weight", sizes.bits_per_weight()},
               {"other_bytes", sizes.other_bytes},
               {"cache_bytes_per_token", cache.first},
               {"cache_bytes_per_token_behind_windows", cache.later},
               {"recent_cache_bytes", cache.recent}};
  if (!net.stored_codes.empty()) json["stored_codes"] = net.stored_codes;
  if (const auto pooling = FindDocument(net.directory, kPoolingName)) {
    json["pooling"] = ParseJson(*pooling, DocumentPath(net.directory, kPoolingName));
  }
  const UnreadKeys& unread = model.file().unread;
  json["unread_keys"] = {{"answers", unread.answers}, {"unknown", unread.unknown}};
  if (!model.plan.is_null()) json["plan"] = model.plan;
  if (net.packed) {
    json["tile_bytes"] = TileBytes(net);
    if (!net.tiles_refused.empty()) json["tiles_refused"] = net.tiles_refused;
  } else {
    for (const auto& [type, bytes] : FileTypes(*model.file().store)) {
      json["file_bytes"][type] = bytes;
    }
  }
  return json;
}

void RunInspect(const InspectArguments& a, const Common& common) {
  if (a.model.empty()) {
    if (!a.kernels) FailUsage("name a model; without one there is only `nibble inspect --kernels`");
    return common.json ? PrintJson(EveryKernelJson()) : PrintEveryKernel();
  }
  if (a.verify) {
    const int64_t files = VerifyManifest(a.model);
    if (!common.json) fmt::print("manifest           {} files as written\n", files);
  }
  const Inspected model = Inspect(a.model, a.load_bits);
  const std::unique_ptr<Backend> backend = a.kernels ? MakeBackend(common.device, false) : nullptr;
  if (common.json) {
    Json json = NetworkJson(model);
    if (backend) json["kernels"] = KernelsJson(model.net, *backend);
    return PrintJson(json);
  }
  PrintNetwork(model, a.load_bits);
  if (backend) PrintKernels(model.net, *backend);
}

}  // namespace

void AddInspect(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<InspectArguments>();
  CLI::App* verb = AddVerb(app, common, "inspect", "Show what a model is made of",
                           "nibble inspect llama-w4a4kv4 --kernels --verify");
  AddModel(*verb, a->model);
  AddLoadBits(*verb, a->load_bits);
  verb->add_flag("--kernels", a->kernels,
                 "Which kernel runs each linear on this machine; without a model: each format on "
                 "every machine");
  verb->add_flag("--verify", a->verify, "Compare every file with manifest.json");
  verb->callback([a, &common, &run] { run = [a, &common] { RunInspect(*a, common); }; });
}

}  // namespace nibble::cli
