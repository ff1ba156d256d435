// SPDX-License-Identifier: Apache-2.0
#include "formats/format_spec.h"

#include <algorithm>

#include "base/error.h"

namespace nibble {

std::string FormatText(const FormatSpec& spec) {
  if (!spec.quantized()) return fmt::format("{}", spec.bits);
  std::string text = fmt::format("{}", spec.bits);
  if (!spec.symmetric) text += " asym";
  if (spec.signed_scale) text += " signed";
  if (spec.group != 0) text += fmt::format(" g{}", spec.group);
  if (spec.second_level) text += " two-level";
  if (spec.sparse) text += " 2:4";
  if (spec.lattice()) text += " lattice";
  if (spec.e2m1()) text += " e2m1";
  if (spec.compared()) {
    text += fmt::format(" {} in 16", kCodebookNames[static_cast<size_t>(spec.codebook)]);
  }
  return text;
}

Json ToJson(const FormatSpec& spec) {
  Json json = {{"bits", spec.bits},
               {"symmetric", spec.symmetric},
               {"group", spec.group},
               {"clip", spec.clip}};
  // Left out where they say nothing, so that plans from before they existed keep their digests.
  if (spec.squared_clips) json["squared_clips"] = true;
  if (spec.signed_scale) json["signed_scale"] = true;
  if (spec.second_level) json["second_level"] = true;
  if (spec.sparse) json["sparse"] = "2:4";
  if (spec.codebook != Codebook::kNone) {
    json["codebook"] = kCodebookNames[static_cast<size_t>(spec.codebook)];
  }
  return json;
}

FormatSpec FormatFromJson(const Json& json, const std::string& where) {
  RefuseUnknownFields(json,
                      {"bits", "symmetric", "group", "clip", "squared_clips", "signed_scale",
                       "second_level", "sparse", "codebook"},
                      where);
  const auto sparse = JsonFind<std::string>(json, "sparse", where);
  if (sparse && *sparse != "2:4") Fail("{}: sparse \"{}\"; only 2:4 is known", where, *sparse);
  const auto codebook = JsonFind<std::string>(json, "codebook", where).value_or("none");
  const auto book = std::ranges::find(kCodebookNames, codebook);
  if (book == std::end(kCodebookNames)) {
    Fail("{}: codebook \"{}\"; use {}", where, codebook, fmt::join(kCodebookNames, ", "));
  }
  const FormatSpec spec = {
      .bits = JsonGet<int>(json, "bits", where),
      .symmetric = JsonGet<bool>(json, "symmetric", where),
      .group = JsonGet<int64_t>(json, "group", where),
      .clip = JsonGet<double>(json, "clip", where),
      .squared_clips = JsonFind<bool>(json, "squared_clips", where).value_or(false),
      .signed_scale = JsonFind<bool>(json, "signed_scale", where).value_or(false),
      .second_level = JsonFind<bool>(json, "second_level", where).value_or(false),
      .sparse = sparse.has_value(),
      .codebook = static_cast<Codebook>(book - std::begin(kCodebookNames))};
  const int only = OnlyBits(spec.codebook);
  const bool few = spec.bits >= 2 && spec.bits <= 8;
  if (!few && spec.bits != 16 && spec.bits != 32 && (spec.bits != only || only == 0)) {
    Fail("{}: bits {}; use 2 to 8, 16 or 32", where, spec.bits);
  }
  if (spec.group < 0) Fail("{}: group {} is negative", where, spec.group);
  if (!(spec.clip >= 0 && spec.clip <= 1)) Fail("{}: clip {} is not in 0..1", where, spec.clip);
  if (spec.sparse && !spec.quantized()) Fail("{}: sparse weights need codes", where);
  if (spec.signed_scale && !spec.symmetric) Fail("{}: an asymmetric scale has no sign", where);
  if (spec.second_level && (spec.group == 0 || spec.bits > 4)) {
    Fail("{}: two levels of scales need groups and at most 4 bits", where);
  }
  if (spec.lattice() && (spec.bits > 4 || !spec.symmetric || spec.group != 0 || spec.sparse)) {
    Fail("{}: a lattice has 2 to 4 bits, is symmetric and has one scale a row", where);
  }
  if (spec.compared() && (!spec.symmetric || spec.group != 0 || spec.sparse ||
                          (only == 0 ? spec.bits > 4 : spec.bits != only))) {
    Fail("{}: {} has {} bits, is symmetric, not sparse, and has one scale a row", where, codebook,
         only == 0 ? "2 to 4" : std::to_string(only));
  }
  if (spec.e2m1() && (spec.bits != 4 || !spec.symmetric || spec.second_level || spec.sparse)) {
    Fail("{}: e2m1 has 4 bits, is symmetric, not sparse, and has one level of scales", where);
  }
  return spec;
}

void PackCodes(const int8_t* codes, int64_t count, int bits, uint8_t* packed) {
  const uint32_t mask = (1u << bits) - 1;
  uint32_t window = 0;
  int filled = 0;
  for (int64_t i = 0; i < count; ++i) {
    window |= (static_cast<uint32_t>(codes[i]) & mask) << filled;
    for (filled += bits; filled >= 8; filled -= 8) {
      *packed++ = static_cast<uint8_t>(window);
      window >>= 8;
    }
  }
  if (filled > 0) *packed = static_cast<uint8_t>(window);
}

void UnpackCodes(const uint8_t* packed, int64_t count, int bits, bool sign_extend, int16_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  const uint32_t sign = sign_extend ? 1u << (bits - 1) : 0;
  uint32_t window = 0;
  int filled = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (filled < bits) {
      window |= static_cast<uint32_t>(*packed++) << filled;
      filled += 8;
    }
    const uint32_t code = window & mask;
    codes[i] = static_cast<int16_t>(static_cast<int32_t>(code ^ sign) - static_cast<int32_t>(sign));
    window >>= bits;
    filled -= bits;
  }
}

}  // namespace nibble
