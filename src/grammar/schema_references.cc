// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_references.h"

#include <boost/url.hpp>
#include <boost/url/src.hpp>  // header only: the library is not linked
#include <charconv>
#include <map>
#include <optional>
#include <set>

namespace nibble::grammar {
namespace {

constexpr const char* kDocument = "document:/";  // of one without $id

// "%41" and, of JSON pointers, "~1", "~0".
std::string Unescaped(std::string_view step) {
  std::string text;
  for (size_t i = 0; i < step.size(); ++i) {
    uint8_t byte = 0;
    const char* hex = step.data() + i + 1;
    if (step[i] == '%' && i + 2 < step.size() &&
        std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else if (step[i] == '~' && i + 1 < step.size()) {
      text += step[++i] == '1' ? '/' : '~';
    } else {
      text += step[i];
    }
  }
  return text;
}

std::string Escaped(std::string_view step) {
  std::string text;
  for (const char c : step) {
    if (c == '~') {
      text += "~0";
    } else if (c == '/') {
      text += "~1";
    } else if (c == '%') {
      text += "%25";
    } else {
      text += c;
    }
  }
  return text;
}

// RFC 3986, section 5; nothing where one of them is no reference.
std::optional<std::string> Resolved(const std::string& base, std::string_view reference) {
  const auto from = boost::urls::parse_uri(base);
  const auto to = boost::urls::parse_uri_reference(reference);
  boost::urls::url resolved;
  if (!from || !to || !boost::urls::resolve(*from, *to, resolved)) return std::nullopt;
  return std::string(resolved.buffer());
}

// Values that are no schemas, whatever they look like.
bool IsData(const std::string& key) {
  return key == "enum" || key == "const" || key == "default" || key == "examples";
}

class References {
 public:
  explicit References(const Json& document) : root_(BaseOf(document, kDocument)) {
    Collect(document, kDocument, "");
  }

  void Replace(const std::string& outer_base, Json* schema) const {
    const std::string base = BaseOf(*schema, outer_base);
    // Pointers are from the root, whatever it is called.
    if (base != outer_base) schema->erase("$id");
    for (const auto& item : schema->items()) {
      const bool dynamic = item.key() == "$dynamicRef";
      if (schema->is_object() && item.value().is_string() && (dynamic || item.key() == "$ref")) {
        const auto& text = item.value().get_ref<const std::string&>();
        if (const auto pointer = Pointer(base, text, dynamic)) item.value() = *pointer;
      } else if (item.value().is_structured() && !(schema->is_object() && IsData(item.key()))) {
        Replace(base, &item.value());
      }
    }
  }

 private:
  static std::string BaseOf(const Json& schema, const std::string& base) {
    if (!schema.is_object() || !schema.contains("$id") || !schema.at("$id").is_string()) {
      return base;
    }
    std::string id = Resolved(base, schema.at("$id").get<std::string>()).value_or(base);
    if (id.ends_with('#')) id.pop_back();
    return id;
  }

  void Collect(const Json& schema, const std::string& outer_base, const std::string& path) {
    const std::string base = BaseOf(schema, outer_base);
    if (base != outer_base || path.empty()) resources_.emplace(base, path);
    if (path.empty()) resources_.emplace(kDocument, path);
    for (const auto& item : schema.items()) {
      const Json& value = item.value();
      const bool names = schema.is_object() && value.is_string();
      if (names && (item.key() == "$anchor" || item.key() == "$dynamicAnchor")) {
        const auto name = value.get<std::string>();
        anchors_.emplace(base + "#" + name, path);
        if (item.key() == "$dynamicAnchor") dynamic_[name].insert(base);
      }
      if (value.is_structured() && !(schema.is_object() && IsData(item.key()))) {
        Collect(value, base, path + "/" + Escaped(item.key()));
      }
    }
  }

  std::optional<std::string> Pointer(const std::string& base, const std::string& text,
                                     bool dynamic) const {
    const size_t hash = std::min(text.find('#'), text.size());
    const std::string fragment = hash < text.size() ? text.substr(hash + 1) : "";
    std::string resource = base;
    if (hash > 0) {
      const auto resolved = Resolved(base, text.substr(0, hash));
      if (!resolved) return std::nullopt;
      resource = *resolved;
    }
    if (fragment.empty() || fragment[0] == '/') {
      const auto known = resources_.find(resource);
      if (known == resources_.end()) return std::nullopt;
      return "#" + known->second + fragment;
    }
    const auto several = dynamic_.find(fragment);
    if (dynamic && several != dynamic_.end() && several->second.contains(resource)) {
      // The outermost resource is the document itself, whatever led here.
      if (several->second.contains(root_)) {
        resource = root_;
      } else if (several->second.size() > 1) {
        return std::nullopt;
      }
    }
    const auto anchor = anchors_.find(resource + "#" + fragment);
    if (anchor == anchors_.end()) return std::nullopt;
    return "#" + anchor->second;
  }

  std::map<std::string, std::string> resources_, anchors_;  // pointers by URI
  std::map<std::string, std::set<std::string>> dynamic_;    // resources by $dynamicAnchor
  std::string root_;
};

}  // namespace

Json WithPointers(const Json& document) {
  Json replaced = document;
  if (document.is_structured()) References(document).Replace(kDocument, &replaced);
  return replaced;
}

const Json* Follow(const Json& document, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  const Json* found = &document;
  std::string_view rest = reference.substr(1);
  while (!rest.empty()) {
    if (rest[0] != '/') return nullptr;
    rest.remove_prefix(1);
    const std::string step = Unescaped(rest.substr(0, rest.find('/')));
    rest.remove_prefix(std::min(rest.size(), rest.find('/')));
    size_t index = 0;
    const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), index);
    const bool is_index = error == std::errc() && end == step.data() + step.size();
    if (found->is_object() && found->contains(step)) {
      found = &found->at(step);
    } else if (found->is_array() && is_index && index < found->size()) {
      found = &(*found)[index];
    } else {
      return nullptr;
    }
  }
  return found;
}

}  // namespace nibble::grammar
