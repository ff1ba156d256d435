// SPDX-License-Identifier: Apache-2.0
// Products alone: Atom's kernel measurements (Zhao et al. 2023), what outliers and groups cost a
// product of 4 bits, and QUIK's 2:4 sparse weights (Ashkboos et al. 2023) beside dense ones.
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

// One linear with inputs of its own. It has to be released.
struct Product {
  Product(const PaperBench& bench, const PackedLinear& linear, int64_t tokens)
      : backend(bench.backend),
        id(backend.Upload(linear)),
        x(RandomFloats(backend, tokens * linear.input.width)),
        y(RandomIntermediates(backend, tokens * linear.weights.rows)),
        acts(backend.PrepareActs({.x = x.data()}, tokens, linear.input)) {}
  ~Product() { backend.Release(id); }
  Product(const Product&) = delete;

  void Run() const {
    const Backend::Projection projection = {id, y.data()};
    backend.Project(acts, {&projection, 1});
  }

  Backend& backend;
  LinearId id;
  Buffer<float> x;
  Buffer<Intermediate> y;
  Activations acts;
};

std::string ShapeText(const PackedLinear& linear, int64_t tokens) {
  return fmt::format("{} x {} x {}", tokens, linear.weights.rows, linear.input.width);
}

// 2 operations for each weight and token, zeros of sparse weights included.
PaperTable::Work WorkOf(const PackedLinear& linear, int64_t tokens) {
  return {.operations =
              2.0 * static_cast<double>(tokens * linear.weights.rows * linear.input.width)};
}

void AtomProduct(const PaperBench& bench, const std::string& name, const PackedLinear& linear,
                 int64_t tokens) {
  const Product product(bench, linear, tokens);
  Contender nibble{"Nibble", [&] { product.Run(); }};
  const CublasProduct bf16(Type::kBf16, tokens, linear.weights.rows, linear.input.width, 1);
  const CublasProduct int8(Type::kInt8, tokens, linear.weights.rows, linear.input.width, 1);
  Contender a{"bf16", [&] { bf16.Run(); }}, b{"s8", [&] { int8.Run(); }};
  TakeTurns({&nibble, &a, &b}, bench.arguments.repeats);
  bench.table.Add(name, ShapeText(linear, tokens), WorkOf(linear, tokens), nibble, {&a, &b});
}

// Activations of 8 bits with sparse weights, beside the same with dense ones and cuBLASLt's.
void SparseProduct(const PaperBench& bench, const std::string& name, const PackedLinear& linear,
                   const PackedLinear& dense, int64_t tokens) {
  const Product own(bench, linear, tokens), other(bench, dense, tokens);
  const CublasProduct int8(Type::kInt8, tokens, linear.weights.rows, linear.input.width, 1);
  Contender nibble{"Nibble", [&] { own.Run(); }};
  Contender a{"dense", [&] { other.Run(); }}, b{"s8", [&] { int8.Run(); }};
  TakeTurns({&nibble, &a, &b}, bench.arguments.repeats);
  bench.table.Add(name, ShapeText(linear, tokens), WorkOf(linear, tokens), nibble, {&a, &b});
}

// One layer of a shape whose weights and inputs are rounded to nearest.
Network OneLayer(const std::string& shape, const std::string& fields) {
  return RandomNetwork(ParseConfig(ShapeConfig(shape, 1), shape),
                       ChangedRecipe(FindRecipe("rtn"), ParseFields(fields)), 1);
}

}  // namespace

void BenchAtomProducts(const PaperBench& bench) {
  const ModelConfig config = ParseConfig(ShapeConfig("llama2-7b", 1), "llama2-7b");
  for (const Rung& rung : kRungs) {
    const Recipe recipe = ChangedRecipe(kAtomRecipe, ParseFields(rung.fields));
    const Network network = RandomNetwork(config, recipe, 1);
    for (const int64_t tokens : {512, 4096}) {
      AtomProduct(bench, std::string(rung.name), network.layers[0][Role::kQ], tokens);
    }
  }
}

void BenchSparseProducts(const PaperBench& bench) {
  for (const std::string shape : {"llama2-7b", "llama2-70b"}) {
    for (const int bits : {8, 4}) {
      const std::string fields = fmt::format("w-bits={},a-bits=8", bits);
      const Network dense = OneLayer(shape, fields),
                    sparse = OneLayer(shape, fields + ",sparse=2:4");
      for (const Role role : {Role::kQ, Role::kGate, Role::kDown}) {
        for (const int64_t tokens : {1, 16, 64, 2048}) {
          SparseProduct(bench, fmt::format("{} 2:4, {} bits", shape, bits), sparse.layers[0][role],
                        dense.layers[0][role], tokens);
        }
      }
    }
  }
}

}  // namespace nibble::cli
