// SPDX-License-Identifier: Apache-2.0
// The one door for JSON from outside. Parsing refuses duplicate keys, invalid UTF-8 and what is too
// long, too deep or has too many keys or values (SECURITY.md has the limits). The getters refuse a
// wrong type, fractions for integers and numbers out of range, which nlohmann's own get<> converts
// silently. `where` names the file in every message.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace nibble {

using Json = nlohmann::ordered_json;
}  // namespace nibble

// Compiled once, in json.cc, and not in each of the many files that include this.
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;

namespace nibble {

// A plan of 10,000 linears, the largest file read here, has 11 MiB and 400,000 values. A value
// takes up to 50 times the bytes of its text.
inline constexpr size_t kMaxJsonBytes = 16 << 20, kMaxJsonValues = 1'000'000;

Json ParseJson(std::string_view text, const std::string& where);

// Reads a whole file of at most max_bytes and parses it.
Json ReadJsonFile(const std::string& path, uint64_t max_bytes = kMaxJsonBytes);

// An object with a field outside `known` is refused: it may change the meaning of the rest.
void RefuseUnknownFields(const Json& object, const std::set<std::string>& known,
                         const std::string& where);

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

// Converts one value; `what` names it in the error message ("config.json: rope_theta").
template <typename T>
T JsonAs(const Json& value, const std::string& what) {
  if constexpr (std::is_same_v<T, Json>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) Fail("{} must be true or false", what);
    return value.get<bool>();
  } else if constexpr (std::integral<T>) {
    if (!value.is_number_integer()) Fail("{} must be an integer", what);
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                                 : std::in_range<T>(value.get<int64_t>());
    if (!fits) Fail("{} = {} is out of range", what, value.dump());
    return value.get<T>();
  } else if constexpr (std::floating_point<T>) {
    if (!value.is_number()) Fail("{} must be a number", what);
    const double number = value.get<double>();
    if (!std::isfinite(static_cast<T>(number))) Fail("{} = {} is not finite", what, value.dump());
    return static_cast<T>(number);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) Fail("{} must be a string", what);
    return value.get<std::string>();
  } else {
    static_assert(IsVector<T>::value, "no checked conversion to this type");
    if (!value.is_array()) Fail("{} must be an array", what);
    T result;
    for (const Json& item : value) {
      result.push_back(JsonAs<typename T::value_type>(item, what + "[]"));
    }
    return result;
  }
}

// Required field. A missing or null field is an error.
template <typename T>
T JsonGet(const Json& object, const std::string& key, const std::string& where) {
  if (!object.is_object()) Fail("{} must be a JSON object", where);
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) Fail("{}: field \"{}\" is missing", where, key);
  return JsonAs<T>(*it, where + ": " + key);
}

// Optional field: absent and null give nullopt, a wrong type is still an error.
template <typename T>
std::optional<T> JsonFind(const Json& object, const std::string& key, const std::string& where) {
  if (!object.is_object()) Fail("{} must be a JSON object", where);
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::nullopt;
  return JsonAs<T>(*it, where + ": " + key);
}

// JsonFind and JsonGet for a number that must lie from `least` to `most`.
template <typename T>
std::optional<T> JsonFindIn(const Json& object, const std::string& key, T min, T max,
                            const std::string& where) {
  const auto value = JsonFind<T>(object, key, where);
  if (value && !(*value >= min && *value <= max)) {
    Fail("{}: {} = {} is not in {}..{}", where, key, *value, min, max);
  }
  return value;
}
template <typename T>
T JsonGetIn(const Json& object, const std::string& key, T min, T max, const std::string& where) {
  JsonGet<T>(object, key, where);  // it must be there
  return *JsonFindIn<T>(object, key, min, max, where);
}

}  // namespace nibble
