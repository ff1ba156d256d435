// SPDX-License-Identifier: Apache-2.0
#include "text/decoder.h"

#include <charconv>
#include <utility>

#include "base/utf8.h"
#include "source/byte_level.h"
#include "text/pattern_json.h"

namespace nibble {
namespace {

std::optional<char> ByteToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

// Takes at most `count` times `character` from the front or the back; returns how many.
int64_t StripFront(std::string* text, std::string_view character, int64_t count) {
  int64_t n = 0;
  while (n < count && std::string_view(*text).substr(n * character.size()).starts_with(character)) {
    ++n;
  }
  text->erase(0, n * character.size());
  return n;
}
int64_t StripBack(std::string* text, std::string_view character, int64_t count) {
  int64_t n = 0;
  for (; n < count && text->ends_with(character); ++n)
    text->resize(text->size() - character.size());
  return n;
}

// Spaces that stand between tokens and not in English.
std::string CleanUp(std::string text, Work* work) {
  constexpr std::pair<std::string_view, std::string_view> kReplaced[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplaced) {
    work->ChargeWrite(text.size());
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

using Kind = DecoderStep::Kind;

// `fused`: an earlier step made one text of all tokens.
DecoderStep StepFromJson(const JsonNode& node, std::string_view type, bool fused) {
  if (type == "Strip") {
    node.AllowKeys({"type", "content", "start", "stop"});
    DecoderStep step{.kind = fused ? Kind::kStripText : Kind::kStripToken};
    step.content = CharacterFromJson(node.Get("content"));
    step.start = node.Get<int64_t>("start");
    step.stop = node.Get<int64_t>("stop");
    if (step.start < 0 || step.stop < 0) Fail("{}: start and stop must be >= 0", node.where());
    return step;
  }
  if (fused) node.Unsupported(fmt::format("decoder {} after Fuse or ByteLevel", type));
  if (type == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {.kind = Kind::kByteLevel};
  }
  if (type == "ByteFallback") {
    node.AllowKeys({"type"});
    return {.kind = Kind::kByteFallback};
  }
  if (type == "Replace") {
    node.AllowKeys({"type", "pattern", "content"});
    return {.kind = Kind::kReplace,
            .pattern = PatternFromJson(node.Get("pattern")),
            .content = std::string(node.Get<std::string_view>("content"))};
  }
  if (type == "Metaspace") {
    node.AllowKeys(
        {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const std::string replacement = CharacterFromJson(node.Get("replacement"));
    return {.kind = Kind::kMetaspace,
            .pattern = Regex(replacement, Regex::Syntax::kLiteral, node.where()),
            .drop_first = PrependSchemeFromJson(node) != PrependScheme::kNever};
  }
  if (type == "WordPiece") {
    node.AllowKeys({"type", "prefix", "cleanup"});
    return {.kind = Kind::kWordPiece,
            .content = std::string(node.GetOr<std::string_view>("prefix", "##")),
            .cleanup = node.GetOr("cleanup", true)};
  }
  if (type == "BPEDecoder") {
    node.AllowKeys({"type", "suffix"});
    const auto suffix = node.GetOr<std::string_view>("suffix", "</w>");
    return {.kind = Kind::kWordEnds,
            .pattern = Regex(suffix, Regex::Syntax::kLiteral, node.where())};
  }
  node.Unsupported(fmt::format("decoder {}", type));
}

}  // namespace

Decoder Decoder::FromJson(const std::optional<JsonNode>& node) {
  Decoder decoder;
  if (!node) {
    decoder.steps_.push_back({.kind = Kind::kJoin});
    return decoder;
  }
  bool fused = false;
  node->ForEachComponent("decoders", [&](const JsonNode& component, std::string_view type) {
    if (type == "Fuse") {
      component.AllowKeys({"type"});
    } else {
      decoder.steps_.push_back(StepFromJson(component, type, fused));
    }
    fused = fused || type == "Fuse" || type == "ByteLevel";
  });
  return decoder;
}

DecoderRun::DecoderRun(const Decoder& decoder, std::string where)
    : decoder_(&decoder), states_(decoder.steps().size()), work_(std::move(where), 0) {}

std::string DecoderRun::Push(std::string_view token) {
  work_.Allow(token.size() + 1);
  Feed(0, std::string(token));
  return std::exchange(out_, {});
}

std::string DecoderRun::Flush() {
  for (size_t i = 0; i < states_.size(); ++i) {
    const Kind kind = decoder_->steps()[i].kind;
    if (kind == Kind::kByteFallback) FlushByteRun(i);
    if (kind == Kind::kByteLevel && !std::exchange(states_[i].held, {}).empty()) {
      Feed(i + 1, std::string(kReplacementCharacter));
    }
    if (kind == Kind::kWordEnds && states_[i].started) {
      const auto& pattern = decoder_->steps()[i].pattern;
      Feed(i + 1, pattern->ReplaceAll(std::exchange(states_[i].held, {}), "", &work_));
    }
    // kStripText holds back only text that it strips, so nothing of it remains to be written.
  }
  return std::exchange(out_, {});
}

void DecoderRun::FlushByteRun(size_t step) {
  const std::string run = std::exchange(states_[step].held, {});
  if (IsValidUtf8(run)) {
    if (!run.empty()) Feed(step + 1, run);
    return;
  }
  for (size_t i = 0; i < run.size(); ++i) Feed(step + 1, std::string(kReplacementCharacter));
}

std::string DecoderRun::StripText(size_t step, std::string chunk) {
  const DecoderStep& s = decoder_->steps()[step];
  State& state = states_[step];
  if (!state.started) {
    state.stripped += StripFront(&chunk, s.content, s.start - state.stripped);
    state.started = state.stripped == s.start || !chunk.empty();
  }
  work_.ChargeWrite(state.held.size());
  chunk.insert(0, std::exchange(state.held, {}));
  const int64_t back = StripBack(&chunk, s.content, s.stop);
  for (int64_t i = 0; i < back; ++i) state.held += s.content;
  return chunk;
}

void DecoderRun::Feed(size_t step, std::string token) {
  for (; step < states_.size(); ++step) {
    const DecoderStep& s = decoder_->steps()[step];
    State& state = states_[step];
    switch (s.kind) {
      case Kind::kReplace:
        token = s.pattern->ReplaceAll(token, s.content, &work_);
        break;
      case Kind::kMetaspace:
        token = s.pattern->ReplaceAll(token, s.drop_first && !state.started ? "" : " ", &work_);
        state.started = true;
        break;
      case Kind::kStripToken:
        StripFront(&token, s.content, s.start);
        StripBack(&token, s.content, s.stop);
        break;
      case Kind::kStripText:
        token = StripText(step, std::move(token));
        break;
      case Kind::kByteFallback:
        if (const auto byte = ByteToken(token)) {
          state.held.push_back(*byte);
          return;
        }
        FlushByteRun(step);
        break;
      case Kind::kByteLevel:
        state.held += BytesFromByteChars(token);
        token = TakeUtf8(&state.held);
        break;
      case Kind::kWordPiece:
        if (!std::exchange(state.started, true)) {
          // The first token stays as it is.
        } else if (token.starts_with(s.content)) {
          token.erase(0, s.content.size());
        } else {
          token.insert(0, 1, ' ');
        }
        if (s.cleanup) token = CleanUp(std::move(token), &work_);
        break;
      case Kind::kWordEnds:
        std::swap(state.held, token);
        if (!std::exchange(state.started, true)) return;
        token = s.pattern->ReplaceAll(token, " ", &work_);
        break;
      case Kind::kJoin:
        if (std::exchange(state.started, true)) token = std::string(1, ' ') + token;
        break;
    }
  }
  out_ += token;
}

}  // namespace nibble
