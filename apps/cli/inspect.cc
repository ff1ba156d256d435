// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "apps/cli/cli.h"
#include "apps/cli/inspect_kernels.h"
#include "apps/cli/linear_rows.h"
#include "base/progress.h"
#include "engine/kv_groups.h"
#include "engine/pooling.h"
#include "models/manifest.h"
#include "source/model_source.h"
#include "source/pooling_document.h"

namespace nibble::cli {
namespace {

struct InspectArguments {
  std::string model;
  bool kernels = false, verify = false;
};

struct Sizes {
  double quantized_bytes = 0, quantized_weights = 0, other_bytes = 0;
  double bits_per_weight() const {
    return quantized_weights > 0 ? 8 * quantized_bytes / quantized_weights : 0;
  }
};

Sizes MeasureSizes(const Network& net) {
  Sizes sizes;
  const auto add = [&](const PackedLinear& linear) {
    const PackedWeights& w = linear.weights;
    const size_t gather = linear.input.gather.size() * sizeof(int32_t);
    const double bytes = static_cast<double>(w.bytes() + linear.tail.bytes() + gather);
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
  sizes.other_bytes += static_cast<double>(net.head.weights.bytes());
  if (!net.one_table()) sizes.other_bytes += static_cast<double>(net.embedding.bytes());
  sizes.other_bytes +=
      static_cast<double>(net.layer_table.bytes() + net.layer_projection.weights.bytes());
  return sizes;
}

// Of a token while the text is shorter than any window, and behind the longest one; and of the
// recent form of a text.
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
          page * static_cast<double>(recent * kMostRecentPages)};
}

std::string KeysText(const Network& net) {
  const bool centered = net.layers[0].vectors.contains(LayerVector::kKeyCenter);
  return CacheText(net.caches, &KvSpec::k) + (centered ? " less their mean" : "");
}

std::vector<std::string> FormatCells(const PackedLinear& l) {
  const InputSpec& in = l.input;
  return {fmt::format("{} x {}", l.weights.rows, in.width),
          TailedText(l.weights.format, in.tail_width, l.tail.format),
          TailedText(in.activation, in.tail_width, in.tail_activation),
          OnlineText(!in.scales.empty(), in.transform, !in.gather.empty())};
}

using Rows = std::vector<std::vector<std::string>>;

Rows FormatRows(const Network& net) {
  Rows rows = {{"linear", "shape", "weights", "activations", "online transform"}};
  AddLinearRows(
      net.config,
      [&](int64_t layer, Role role) {
        return FormatCells(net.layers[static_cast<size_t>(layer)][role]);
      },
      rows);
  const auto add = [&](const char* name, const PackedLinear& table) {
    rows.push_back({name});
    for (std::string& cell : FormatCells(table)) rows.back().push_back(std::move(cell));
  };
  add(net.one_table() ? "head, embedding" : "head", net.head);
  if (!net.one_table()) {
    add("embedding", {.weights = net.embedding, .input = {.width = net.embedding.cols}});
  }
  if (net.config.layer_input_size > 0) {
    add("layer_table", {.weights = net.layer_table, .input = {.width = net.layer_table.cols}});
    add("layer_projection", net.layer_projection);
  }
  return rows;
}

uint64_t TileBytes(const Network& net) {
  uint64_t bytes = 0;
  if (!net.tiles) return bytes;
  for (const auto& [name, view] : net.tiles->tensors()) bytes += view.bytes();
  return bytes;
}

// Of a Nibble checkpoint.
std::string TilesText(const Network& net) {
  if (!net.tiles_refused.empty()) return "not used: " + net.tiles_refused;
  if (!net.tiles) return "none (`nibble repack` makes one)";
  return fmt::format("{}, used in place", BytesText(static_cast<double>(TileBytes(net))));
}

void PrintNetwork(const Network& net) {
  const ModelConfig& c = net.config;
  const Sizes sizes = MeasureSizes(net);
  const std::string pooling = PoolingText(net.directory);
  fmt::print(
      "{}: {} model, {:.1f} M parameters, {} layers, hidden {}, {} heads / {} kv heads of {}, "
      "ffn {}, vocabulary {}, context {}\n",
      net.directory, c.family, static_cast<double>(c.parameters()) / 1e6, c.layers, c.hidden_size,
      c.heads, c.kv_heads, c.head_dim, c.ffn_size(), c.vocab_size, c.context);
  if (!net.stored_codes.empty())
    fmt::print("codes              {}'s, as stored\n", net.stored_codes);
  if (sizes.quantized_weights > 0) {
    fmt::print("quantized linears  {} ({:.2f} bits per weight)\n", BytesText(sizes.quantized_bytes),
               sizes.bits_per_weight());
  }
  fmt::print("other tensors      {}\n", BytesText(sizes.other_bytes));
  if (net.packed) fmt::print("tile plane         {}\n", TilesText(net));
  if (!pooling.empty()) fmt::print("embeddings         {}\n", pooling);
  const auto [first, later, recent] = MeasureCache(net);
  fmt::print("KV cache           {} per token{}{}; K {}, V {}; rotation {}\n\n", BytesText(first),
             later < first ? fmt::format(", {} behind the windows", BytesText(later)) : "",
             recent > 0 ? fmt::format(", and {} of a text", BytesText(recent)) : "", KeysText(net),
             CacheText(net.caches, &KvSpec::v), TransformText(net.caches[0].rotation));
  fmt::print("{}", Table(FormatRows(net)));
}

Json NetworkJson(const Network& net) {
  const ModelConfig& c = net.config;
  const Sizes sizes = MeasureSizes(net);
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
  if (!net.packed) return json;
  json["tile_bytes"] = TileBytes(net);
  if (!net.tiles_refused.empty()) json["tiles_refused"] = net.tiles_refused;
  json["plan"] = net.config_json["quantization_config"];
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
  const Network net = OpenNetwork(a.model);
  const std::unique_ptr<Backend> backend = a.kernels ? MakeBackend(common.device, false) : nullptr;
  if (common.json) {
    Json json = NetworkJson(net);
    if (backend) json["kernels"] = KernelsJson(net, *backend);
    return PrintJson(json);
  }
  PrintNetwork(net);
  if (backend) PrintKernels(net, *backend);
}

}  // namespace

void AddInspect(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<InspectArguments>();
  CLI::App* verb = AddVerb(app, common, "inspect", "Show what a model is made of",
                           "nibble inspect llama-w4a4kv4 --kernels --verify");
  AddModel(*verb, a->model);
  verb->add_flag("--kernels", a->kernels,
                 "Which kernel runs each linear on this machine; without a model: each format on "
                 "every machine");
  verb->add_flag("--verify", a->verify, "Compare every file with manifest.json");
  verb->callback([a, &common, &run] { run = [a, &common] { RunInspect(*a, common); }; });
}

}  // namespace nibble::cli
