// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "source/byte_level.h"
#include "source/model_source.h"
#include "source/tokenizer_config.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/special_frame.h"
#include "text/token_model.h"

namespace nibble {
namespace {

// The largest known file has 3 million values.
constexpr int64_t kMaxValues = 6'000'000;

// simdjson keeps up to 24 bytes for a value, so their number is bounded before it is called.
simdjson::dom::element ParseJson(std::string* json, simdjson::dom::parser* parser,
                                 const std::string& where) {
  const auto values = std::count_if(json->begin(), json->end(), [](char c) {
    return (c == ',') | (c == ':') | (c == '[') | (c == '{');
  });
  if (values > kMaxValues) Fail("{}: more than {} values", where, kMaxValues);
  json->reserve(json->size() + simdjson::SIMDJSON_PADDING);  // which spares simdjson a copy
  simdjson::dom::element root;
  auto error = parser->allocate(json->size(), kMaxTokenizerDepth);
  if (!error) error = parser->parse(json->data(), json->size(), false).get(root);
  if (error) Fail("{}: not valid JSON ({})", where, simdjson::error_message(error));
  return root;
}

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    std::string_view text;     // in the model's vocabulary, or a key of added_ids
    std::string_view written;  // what decoders get; an added token's content
    bool special = false;
    bool present = false;
  };

  Impl(std::string file, const JsonNode& root, uint64_t file_bytes);
  static std::unique_ptr<Impl> Read(std::string json, const std::string& where);

  void AddTokens(const JsonNode& list, Work* work);
  // One side of the frame, where a configuration says what stands there.
  void Surround(std::optional<bool> adds, const std::optional<std::string>& token,
                std::vector<int32_t>* ids) const;
  void EncodeText(std::string_view text, bool plain, std::vector<int32_t>* ids) const;
  const Token* Find(int32_t id) const {
    const bool known = id >= 0 && static_cast<size_t>(id) < tokens.size() && tokens[id].present;
    return known ? &tokens[id] : nullptr;
  }
  Token* Slot(int32_t id) {
    if (tokens.size() <= static_cast<size_t>(id)) tokens.resize(static_cast<size_t>(id) + 1);
    return &tokens[id];
  }

  std::string where;
  std::vector<Token> tokens;  // by id
  std::unordered_map<std::string, int32_t, SecretHash, std::equal_to<>> added_ids;
  std::deque<std::string> normalized_texts;  // of added tokens
  AddedTokenMatcher given, normalized;       // for the text as given and after the normalizer
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenModel model;
  SpecialFrame frame;
  Decoder decoder;
};

Tokenizer::Impl::Impl(std::string file, const JsonNode& root, uint64_t file_bytes)
    : where(std::move(file)) {
  root.AllowKeys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  model = TokenModel::FromJson(root.Get("model"));
  normalizer = Normalizer::FromJson(root.Find("normalizer"));
  pre_tokenizer = PreTokenizer::FromJson(root.Find("pre_tokenizer"));
  decoder = Decoder::FromJson(root.Find("decoder"));
  const Vocabulary& vocabulary = model.vocabulary();
  for (int32_t id = 0; id < vocabulary.end(); ++id) {
    if (vocabulary.Has(id)) {
      const std::string_view text = vocabulary.Text(id);
      *Slot(id) = {.text = text, .written = text, .special = false, .present = true};
    }
  }
  Work work(where, file_bytes);
  if (const auto list = root.Find("added_tokens")) AddTokens(*list, &work);
  frame = SpecialFrame::FromJson(root.Find("post_processor"), [&](int64_t id) {
    return id >= 0 && id < kMaxTokenId && Find(static_cast<int32_t>(id)) != nullptr;
  });
}

std::unique_ptr<Tokenizer::Impl> Tokenizer::Impl::Read(std::string json, const std::string& where) {
  simdjson::dom::parser parser;
  const JsonNode root(ParseJson(&json, &parser, where), where);
  return std::make_unique<Impl>(where, root, json.size());
}

void Tokenizer::Impl::Surround(std::optional<bool> adds, const std::optional<std::string>& token,
                               std::vector<int32_t>* ids) const {
  if (!adds || (*adds && !token)) return;
  ids->clear();
  if (!*adds) return;
  const auto added = added_ids.find(*token);
  const auto id =
      added != added_ids.end() ? std::optional(added->second) : model.vocabulary().Find(*token);
  if (!id) Fail("{}: no token {}, which tokenizer_config.json puts around a text", where, *token);
  ids->push_back(*id);
}

void Tokenizer::Impl::AddTokens(const JsonNode& list, Work* work) {
  std::vector<AddedToken> as_given, as_normalized;
  for (AddedToken& token : AddedTokensFromJson(list)) {
    Token& slot = *Slot(token.id);
    const auto vocab_id = model.vocabulary().Find(token.content);
    if ((slot.present && slot.text != token.content) || (vocab_id && *vocab_id != token.id)) {
      Fail("{}: \"{}\" has id {}, which contradicts the vocabulary", list.where(), token.content,
           token.id);
    }
    const auto [added, is_new] = added_ids.emplace(token.content, token.id);
    if (!is_new) Fail("{}: \"{}\" stands twice", list.where(), token.content);
    slot = {
        .text = added->first, .written = added->first, .special = token.special, .present = true};
    if (!token.normalized) {
      as_given.push_back(std::move(token));
      continue;
    }
    token.content = normalizer.Apply(std::move(token.content), work);
    if (token.content.empty()) {
      Fail("{}: the normalizer leaves nothing of token {}", list.where(), token.id);
    }
    slot.written = normalized_texts.emplace_back(token.content);
    as_normalized.push_back(std::move(token));
  }
  given = AddedTokenMatcher(std::move(as_given));
  normalized = AddedTokenMatcher(std::move(as_normalized));
}

void Tokenizer::Impl::EncodeText(std::string_view text, bool plain,
                                 std::vector<int32_t>* ids) const {
  if (!IsValidUtf8(text)) FailUsage("the text to tokenize is not valid UTF-8");
  Work work(where, text.size());
  TokenModel::Scratch scratch;
  given.Split(text, plain, &work, [&](const AddedToken* token, size_t begin, size_t end) {
    if (token != nullptr) return ids->push_back(token->id);
    const std::string part = normalizer.Apply(std::string(text.substr(begin, end - begin)), &work);
    normalized.Split(part, plain, &work, [&](const AddedToken* inner, size_t from, size_t to) {
      if (inner != nullptr) return ids->push_back(inner->id);
      const Pieces pieces =
          pre_tokenizer.Split(part.substr(from, to - from), begin == 0 && from == 0, &work);
      for (size_t i = 0; i < pieces.ranges.size(); ++i) {
        model.Encode(pieces[i], &work, &scratch, ids);
      }
    });
  });
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::Load(const std::string& model) {
  const std::string where = DocumentPath(model, "tokenizer.json");
  auto impl = Impl::Read(GetDocument(model, "tokenizer.json"), where);
  if (IsGguf(model)) return Tokenizer(std::move(impl));  // it says that itself
  const TokenizerConfig config = TokenizerConfig::Read(model);
  if (config.frames) {
    impl->Surround(config.add_bos, config.bos, &impl->frame.before);
    impl->Surround(config.add_eos, config.eos, &impl->frame.after);
  }
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::Parse(std::string_view json, const std::string& where) {
  return ParseOwned(std::string(json), where);
}

Tokenizer Tokenizer::ParseOwned(std::string json, const std::string& where) {
  return Tokenizer(Impl::Read(std::move(json), where));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids;
  if (add_special) ids = impl_->frame.before;
  impl_->EncodeText(text, false, &ids);
  const auto& after = impl_->frame.after;
  if (add_special) ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

std::vector<int32_t> Tokenizer::EncodePlain(std::string_view text) const {
  std::vector<int32_t> ids;
  impl_->EncodeText(text, true, &ids);
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder stream(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Flush();
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->tokens.size());
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const auto it = impl_->added_ids.find(token);
  return it != impl_->added_ids.end() ? it->second : impl_->model.vocabulary().Find(token);
}

std::string Tokenizer::TokenText(int32_t id) const {
  const Impl::Token* token = impl_->Find(id);
  return token != nullptr ? std::string(token->text) : "";
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const Impl::Token* token = impl_->Find(id);
  return token != nullptr && token->special;
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  const Impl::Token* token = impl_->Find(id);
  if (token == nullptr || token->special) return "";
  for (const DecoderStep& step : impl_->decoder.steps()) {
    if (step.kind == DecoderStep::Kind::kByteLevel) return BytesFromByteChars(token->written);
  }
  constexpr std::string_view kBefore = "a";
  DecoderRun run(impl_->decoder, impl_->where);
  std::string text = run.Push(kBefore);
  text += run.Push(token->written);
  text += run.Flush();
  text.erase(0, kBefore.size());
  // The run took a lone byte of a longer character for broken text.
  if (text == kReplacementCharacter && token->written.size() == 6) {
    uint8_t byte = 0;
    const char* digits = token->written.data() + 3;  // of <0xE2>
    if (std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2)
      text.assign(1, static_cast<char>(byte));
  }
  return text;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : impl_(tokenizer.impl_.get()),
      skip_special_(skip_special),
      run_(std::make_unique<DecoderRun>(impl_->decoder, impl_->where)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::Push(int32_t id) {
  const Tokenizer::Impl::Token* token = impl_->Find(id);
  if (token == nullptr || (skip_special_ && token->special)) return "";
  return run_->Push(token->written);
}

std::string StreamDecoder::Flush() {
  return run_->Flush();
}

}  // namespace nibble
