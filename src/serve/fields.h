// SPDX-License-Identifier: Apache-2.0
// Fields of request bodies as tables: a name and what it sets. Fields that no table has are
// ignored, null is as if the field were not there, and a value of the wrong type or out of range is
// a 400 that names the field.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <type_traits>

#include "serve/api_error.h"

namespace nibble::serve {

template <typename Target>
struct Field {
  const char* name;
  void (*read)(const Json& value, const std::string& name, Target& target);
};

// A number such as 3.0 as the integer 3, since JSON takes them for the same; below 2^53, where
// doubles are exact. Null for all else.
inline Json WholeNumber(const Json& value) {
  if (!value.is_number_float()) return nullptr;
  const auto number = value.get<double>();
  const bool whole = std::fabs(number) < 0x1p53 && number == std::floor(number);
  return whole ? Json(static_cast<int64_t>(number)) : Json();
}

template <typename Target, size_t N>
void ReadFields(const Json& body, const Field<Target> (&fields)[N], Target& target) {
  for (const Field<Target>& field : fields) {
    const auto found = body.find(field.name);
    if (found == body.end() || found->is_null()) continue;
    try {
      const Json whole = WholeNumber(*found);
      field.read(whole.is_null() ? *found : whole, field.name, target);
    } catch (const Error& error) {
      throw ApiError(400, error.what(), field.name);
    }
  }
}

// The type of a member's value, without std::optional.
template <typename T>
struct HeldBy {
  using Type = T;
};
template <typename T>
struct HeldBy<std::optional<T>> {
  using Type = T;
};

template <typename T>
T ValueIn(const Json& value, const std::string& name, T min, T max) {
  const T number = JsonAs<T>(value, name);
  if (!(number >= min && number <= max)) {
    BadField(name, "{} = {} is not in {}..{}", name, value.dump(), min, max);
  }
  return number;
}

// Readers for tables: they store the value as the member's type, SetIn as a number between two
// bounds.
template <auto kMember, typename Target>
void Set(const Json& value, const std::string& name, Target& target) {
  auto& member = target.*kMember;
  member = JsonAs<typename HeldBy<std::remove_cvref_t<decltype(member)>>::Type>(value, name);
}
template <auto kMember, auto kMin, auto kMax, typename Target>
void SetIn(const Json& value, const std::string& name, Target& target) {
  auto& member = target.*kMember;
  using T = typename HeldBy<std::remove_cvref_t<decltype(member)>>::Type;
  member = ValueIn<T>(value, name, kMin, kMax);
}

}  // namespace nibble::serve
