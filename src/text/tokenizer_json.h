// SPDX-License-Identifier: Apache-2.0
// A value of tokenizer.json together with the path that leads to it, so that every message names
// the file and the component. Getters refuse a wrong type. simdjson rather than base/json.h: these
// files reach 30 MB, it reads them five times faster, refuses invalid UTF-8 and keeps duplicate
// keys visible.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace nibble {

// Components of one pipeline, and levels of the whole file.
inline constexpr size_t kMaxComponents = 64;
inline constexpr size_t kMaxTokenizerDepth = 64;

class JsonNode {
 public:
  JsonNode(simdjson::dom::element root, std::string file) : JsonNode(root, std::move(file), "") {}

  // "tokenizer.json: pre_tokenizer.pretokenizers[1]".
  std::string where() const { return path_.empty() ? file_ : file_ + ": " + path_; }

  // T is std::string_view, bool, int64_t, double, simdjson::dom::array or simdjson::dom::object.
  // Views live as long as the parser.
  template <typename T>
  T As() const {
    T result;
    if (value_.get<T>().get(result) != simdjson::SUCCESS) Fail("{} must be {}", where(), Name<T>());
    return result;
  }

  // Absent and null are the same.
  std::optional<JsonNode> Find(std::string_view key) const;
  JsonNode Get(std::string_view key) const;
  template <typename T>
  T Get(std::string_view key) const {
    return Get(key).As<T>();
  }
  template <typename T>
  T GetOr(std::string_view key, T fallback) const {
    const auto node = Find(key);
    return node ? node->As<T>() : fallback;
  }

  // Calls item(node) for every element of an array.
  void ForEach(const std::function<void(const JsonNode&)>& item) const;
  // Calls component(node, type) for a pipeline component, or for each one inside a "Sequence",
  // whose elements stand under `list_key`, at any depth: nesting does not change what they do.
  // There may be kMaxComponents, as each goes through the whole text.
  void ForEachComponent(
      std::string_view list_key,
      const std::function<void(const JsonNode&, std::string_view type)>& component) const {
    size_t count = 0;
    ForEachComponent(list_key, component, &count);
  }

  // A component must not carry a key we do not know, since it could change the ids.
  void AllowKeys(std::initializer_list<std::string_view> keys) const;
  [[noreturn]] void Unsupported(std::string_view what) const {
    Fail("{}: {} is not supported; convert the tokenizer or report the model", where(), what);
  }

 private:
  void ForEachComponent(
      std::string_view list_key,
      const std::function<void(const JsonNode&, std::string_view type)>& component,
      size_t* count) const;
  JsonNode(simdjson::dom::element value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}
  template <typename T>
  static constexpr const char* Name() {
    if constexpr (std::is_same_v<T, std::string_view>) return "a string";
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    if constexpr (std::is_same_v<T, int64_t>) return "an integer";
    if constexpr (std::is_same_v<T, double>) return "a number";
    if constexpr (std::is_same_v<T, simdjson::dom::array>) return "an array";
    return "an object";
  }

  simdjson::dom::element value_;
  std::string file_, path_;
};

}  // namespace nibble
