// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/inspect_kernels.h"

#include "apps/cli/cli.h"
#include "apps/cli/linear_rows.h"

namespace nibble::cli {

std::string KernelsText(const KernelChooser& choose, const ProductFormat& product) {
  const std::vector<KernelRange> ranges = KernelRanges(choose, product);
  std::vector<std::string> kernels;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const int64_t first = ranges[i].first_tokens;
    const int64_t last = i + 1 < ranges.size() ? ranges[i + 1].first_tokens - 1 : 0;
    const std::string tokens = last == 0       ? fmt::format("{}+", first)
                               : last == first ? fmt::format("{}", first)
                                               : fmt::format("{}-{}", first, last);
    kernels.push_back(fmt::format("{} {}", tokens, ranges[i].use.name));
  }
  return fmt::format("{}", fmt::join(kernels, ", "));
}

namespace {

using Cells = std::vector<std::string>;
using Rows = std::vector<Cells>;

// The kernels, then what they do instead, or nothing.
Cells KernelCells(const KernelChooser& choose, const ProductFormat& product) {
  return {KernelsText(choose, product), KernelRanges(choose, product).back().use.instead};
}

Json ProductJson(Json product, const Cells& cells) {
  product["kernels"] = cells[0];
  product["instead"] = cells[1].empty() ? Json(nullptr) : Json(cells[1]);
  return product;
}

KernelChooser ChooserOf(const Backend& backend) {
  return [&](const ProductFormat& p, int64_t tokens) { return backend.KernelFor(p, tokens); };
}

// [linear, tokens and kernels, instead]; a tail has a row of its own.
Rows ModelRows(const Network& net, const Backend& backend) {
  const KernelChooser choose = ChooserOf(backend);
  Rows rows;
  const auto add = [&](const std::string& suffix, const auto& cells) {
    const size_t first = rows.size();
    AddLinearRows(
        net.config,
        [&](int64_t layer, Role role) {
          return cells(net.layers[static_cast<size_t>(layer)][role]);
        },
        rows);
    for (size_t i = first; i < rows.size(); ++i) rows[i][0] += suffix;
    std::erase_if(rows, [](const Cells& row) { return row.size() == 1; });
  };
  add("", [&](const PackedLinear& l) { return KernelCells(choose, MainProduct(l)); });
  add(", tail", [&](const PackedLinear& l) {
    return l.tail.cols > 0 ? KernelCells(choose, TailProduct(l)) : Cells();
  });
  rows.push_back({"head"});
  for (std::string& cell : KernelCells(choose, MainProduct(net.head))) {
    rows.back().push_back(std::move(cell));
  }
  return rows;
}

}  // namespace

void PrintKernels(const Network& net, const Backend& backend) {
  Rows rows = {{"linear", "tokens and kernel", "instead"}};
  for (Cells& row : ModelRows(net, backend)) rows.push_back(std::move(row));
  fmt::print("\nkernels on {}\n{}", backend.Name(), Table(rows));
}

Json KernelsJson(const Network& net, const Backend& backend) {
  Json products = Json::array();
  for (const Cells& row : ModelRows(net, backend)) {
    products.push_back(ProductJson({{"linear", row[0]}}, {row[1], row[2]}));
  }
  return {{"machine", backend.Name()}, {"products", products}};
}

void PrintEveryKernel() {
  const char* before = "";
  for (const MachineKernels& machine : EveryMachine()) {
    Rows rows = {{"weights", "inputs", "tokens and kernel", "instead"}};
    for (const ProductFormat& p : ProductFormats()) {
      rows.push_back({"w" + FormatText(p.weights), "a" + FormatText(p.activations)});
      for (std::string& cell : KernelCells(machine.choose, p)) {
        rows.back().push_back(std::move(cell));
      }
    }
    fmt::print("{}{}\n{}", before, machine.name, Table(rows));
    before = "\n";
  }
}

Json EveryKernelJson() {
  Json machines = Json::array();
  for (const MachineKernels& machine : EveryMachine()) {
    Json products = Json::array();
    for (const ProductFormat& p : ProductFormats()) {
      products.push_back(
          ProductJson({{"weights", FormatText(p.weights)}, {"inputs", FormatText(p.activations)}},
                      KernelCells(machine.choose, p)));
    }
    machines.push_back({{"machine", machine.name}, {"products", products}});
  }
  return machines;
}

}  // namespace nibble::cli
