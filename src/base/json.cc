// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>

#include "base/file.h"
#include "base/json_integers.h"

template class nlohmann::basic_json<nlohmann::ordered_map>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;

namespace nibble {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxKeys = 10'000;  // of an object; ordered_json looks keys up one by one

// Builds the value from the parser's events and refuses while it is small: nlohmann's own builder
// with a callback looks through all elements of an array whenever one of them ends.
class Builder final : public Json::json_sax_t {
 public:
  Builder(const std::string& where, bool keeps_integers)
      : where_(where), keeps_integers_(keeps_integers) {
    open_.emplace_back();
  }

  Json Result() { return std::move(open_.back().values.at(0)); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string& text) override {
    const bool keeps =
        keeps_integers_ && text.find_first_not_of("-0123456789") == std::string::npos;
    return Add(keeps ? Json::binary({text.begin(), text.end()}) : Json(value));
  }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // JSON text has none
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }

  bool key(std::string& value) override {
    std::vector<std::string>& keys = open_.back().keys;
    if (keys.size() == kMaxKeys) Fail("{}: a JSON object of over {} keys", where_, kMaxKeys);
    keys.push_back(std::move(value));
    return true;
  }

  bool end_object() override {
    Container& object = open_.back();
    RefuseDuplicates(object.keys);
    Json::object_t members;
    members.reserve(object.keys.size());
    for (size_t i = 0; i < object.keys.size(); ++i) {
      // The vector's own, since that of ordered_map looks for the key again.
      members.Json::object_t::Container::emplace_back(std::move(object.keys[i]),
                                                      std::move(object.values[i]));
    }
    return Close(std::move(members));
  }

  bool end_array() override { return Close(Json::array_t(std::move(open_.back().values))); }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    Fail("{}: not valid JSON ({})", where_, error.what());
  }

 private:
  struct Container {
    std::vector<std::string> keys;  // of an object
    std::vector<Json> values;
  };

  bool Open() {
    if (open_.size() > kMaxDepth) Fail("{}: JSON nested deeper than {} levels", where_, kMaxDepth);
    open_.emplace_back();
    return true;
  }

  bool Close(Json value) {
    open_.pop_back();
    return Add(std::move(value));
  }

  bool Add(Json value) {
    if (++values_ > kMaxJsonValues) Fail("{}: over {} JSON values", where_, kMaxJsonValues);
    open_.back().values.push_back(std::move(value));
    return true;
  }

  void RefuseDuplicates(const std::vector<std::string>& keys) const {
    std::vector<std::string_view> sorted(keys.begin(), keys.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) Fail("{}: duplicate JSON key \"{}\"", where_, *twice);
  }

  const std::string& where_;
  const bool keeps_integers_;
  std::vector<Container> open_;  // the whole text, then what is open in it
  size_t values_ = 0;
};

Json Parse(std::string_view text, const std::string& where, bool keeps_integers) {
  if (text.size() > kMaxJsonBytes) {
    Fail("{}: {} bytes of JSON, at most {} are accepted", where, text.size(), kMaxJsonBytes);
  }
  Builder builder(where, keeps_integers);
  Json::sax_parse(text, &builder);
  return builder.Result();
}

}  // namespace

Json ParseJson(std::string_view text, const std::string& where) {
  return Parse(text, where, false);
}

Json ParseJsonKeepingIntegers(std::string_view text, const std::string& where) {
  return Parse(text, where, true);
}

std::optional<std::string> BigIntegerOf(const Json& value) {
  if (!value.is_binary()) return std::nullopt;
  return std::string(value.get_binary().begin(), value.get_binary().end());
}

void RefuseUnknownFields(const Json& json, const std::set<std::string>& known,
                         const std::string& where) {
  if (!json.is_object()) Fail("{} must be a JSON object", where);
  for (const auto& item : json.items()) {
    if (!known.contains(item.key())) {
      Fail("{}: unknown field \"{}\"; a newer Nibble may have written it", where, item.key());
    }
  }
}

Json ReadJsonFile(const std::string& path, uint64_t max_bytes) {
  return ParseJson(ReadFile(path, max_bytes), path);
}

}  // namespace nibble
