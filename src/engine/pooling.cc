// SPDX-License-Identifier: Apache-2.0
#include "engine/pooling.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "source/model_source.h"
#include "source/pooling_document.h"

namespace nibble {
namespace {

constexpr double kMinLength = 1e-12;  // what a vector of zeros is divided by

constexpr std::pair<std::string_view, Pooling::Tokens> kModes[] = {
    {"mean", Pooling::Tokens::kAll},
    {"cls", Pooling::Tokens::kFirst},
    {"lasttoken", Pooling::Tokens::kLast}};

// pooling.json.
struct Document {
  std::string where;
  std::vector<std::string> modes;
  bool normalize = true;
  std::vector<std::string> modules;
};

std::optional<Document> Read(const std::string& model) {
  const auto text = FindDocument(model, kPoolingName, 1 << 20);
  if (!text) return std::nullopt;
  Document d = {.where = DocumentPath(model, kPoolingName), .modes = {}, .modules = {}};
  const Json json = ParseJson(*text, d.where);
  RefuseUnknownFields(json, {"pooling_mode", "normalize", "modules"}, d.where);
  const Json mode = JsonGet<Json>(json, "pooling_mode", d.where);
  const std::string what = d.where + ": pooling_mode";
  if (mode.is_array()) {
    d.modes = JsonAs<std::vector<std::string>>(mode, what);
  } else {
    d.modes = {JsonAs<std::string>(mode, what)};
  }
  d.normalize = JsonGet<bool>(json, "normalize", d.where);
  d.modules = JsonFind<std::vector<std::string>>(json, "modules", d.where).value_or(d.modules);
  return d;
}

Pooling Supported(const Document& d, const std::string& model) {
  if (!d.modules.empty()) {
    Fail("{}: embeddings of this model need {}, which is not supported", model,
         fmt::join(d.modules, ", "));
  }
  const std::string mode = fmt::format("{}", fmt::join(d.modes, " + "));
  const auto* known =
      std::ranges::find(kModes, mode, &std::pair<std::string_view, Pooling::Tokens>::first);
  if (known != std::end(kModes)) return {.tokens = known->second, .normalize = d.normalize};
  Fail("{}: embeddings of this model are pooled by \"{}\"; mean, cls and lasttoken are supported",
       model, mode);
}

}  // namespace

bool Pooling::Takes(int64_t at, int64_t count) const {
  switch (tokens) {
    case Tokens::kFirst:
      return at == 0;
    case Tokens::kLast:
      return at == count - 1;
    case Tokens::kAll:
      break;
  }
  return true;
}

std::vector<float> Pooling::Vector(std::span<const double> sum, int64_t count) const {
  double divisor = tokens == Tokens::kAll ? static_cast<double>(count) : 1;
  if (normalize) {
    double squares = 0;
    for (const double v : sum) squares += v * v;
    divisor = std::max(std::sqrt(squares), kMinLength);
  }
  std::vector<float> vector;
  vector.reserve(sum.size());
  for (const double v : sum) vector.push_back(static_cast<float>(v / divisor));
  return vector;
}

Pooling LoadPooling(const std::string& model) {
  try {
    const std::optional<Document> document = Read(model);
    return document ? Supported(*document, model) : Pooling{};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

std::string PoolingText(const std::string& model) {
  const std::optional<Document> d = Read(model);
  if (!d) return "";
  std::string text =
      fmt::format("{}{}", fmt::join(d->modes, " + "), d->normalize ? ", of length 1" : "");
  if (!d->modules.empty()) text += fmt::format(", and {}", fmt::join(d->modules, ", "));
  return Printable(text);
}

}  // namespace nibble
