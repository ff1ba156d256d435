// SPDX-License-Identifier: Apache-2.0
// Atom's kernel measurements (Zhao et al. 2023): what outliers and groups cost a product of 4 bits.
#include "apps/bench/paper.h"
#include "measure/cublas_peer.h"
#include "measure/random_network.h"
#include "models/families/family.h"
#include "models/families/shapes.h"

namespace nibble::cli {
namespace {

using cuda::CublasProduct;
using Type = CublasProduct::Type;

// Changes of recipe atom, one step after the other.
struct Rung {
  std::string_view name, fields;
};
constexpr Rung kRungs[] = {{"atom, 4 bits alone", "order=none,tail=0,group=0"},
                           {"atom, 128 channels of 8 bits", "group=0"},
                           {"atom, and groups of 128", ""}};

void Product(const PaperBench& bench, const std::string& name, const PackedLinear& linear,
             int64_t tokens) {
  Backend& backend = bench.backend;
  const int64_t rows = linear.weights.rows, cols = linear.input.width;
  const LinearId id = backend.Upload(linear);
  const Buffer<float> x = RandomFloats(backend, tokens * cols);
  const auto values = RandomIntermediates(backend, tokens * rows);
  const Activations acts = backend.PrepareActs({.x = x.data()}, tokens, linear.input);
  const Backend::Projection projection = {id, values.data()};
  Contender nibble{"Nibble", [&] { backend.Project(acts, {&projection, 1}); }};
  const CublasProduct bf16(Type::kBf16, tokens, rows, cols, 1);
  const CublasProduct int8(Type::kInt8, tokens, rows, cols, 1);
  Contender a{"bf16", [&] { bf16.Run(); }}, b{"s8", [&] { int8.Run(); }};
  TakeTurns({&nibble, &a, &b}, bench.arguments.repeats);
  bench.table.Add(name, fmt::format("{} x {} x {}", tokens, rows, cols),
                  {.operations = 2.0 * static_cast<double>(tokens * rows * cols)}, nibble,
                  {&a, &b});
  backend.Release(id);
}

}  // namespace

void BenchAtomProducts(const PaperBench& bench) {
  const ModelConfig config = ParseConfig(ShapeConfig("llama2-7b", 1), "llama2-7b");
  for (const Rung& rung : kRungs) {
    const Recipe recipe = ChangedRecipe(kAtomRecipe, ParseFields(rung.fields));
    const Network network = RandomNetwork(config, recipe, 1);
    for (const int64_t tokens : {512, 4096}) {
      Product(bench, std::string(rung.name), network.layers[0][Role::kQ], tokens);
    }
  }
}

}  // namespace nibble::cli
