// SPDX-License-Identifier: Apache-2.0
// A file of ranks, as tiktoken reads them: each line has the bytes of a token in base64, a space
// and its rank, which is its id. The pair of tokens is joined first whose union has the lowest
// rank. How a text is cut into words and which special tokens follow the ranks is the family's.
#include <algorithm>
#include <bitset>
#include <charconv>

#include "io/base64.h"
#include "source/byte_level.h"
#include "source/byte_level_tokenizer.h"
#include "source/tokenizer_files.h"

namespace nibble {
namespace {

constexpr size_t kMaxRanks = 1 << 19;

struct Family {
  std::string_view model_type;
  WordPattern words;
  bool nfc = false;
  // Names of the tokens behind the ranks, in order. Later ones are `numbered` with a number from 0.
  std::vector<std::string_view> special;
  std::string_view numbered;
  size_t special_count = 0;
};

const std::vector<Family>& Families() {
  const Family qwen = {.model_type = "qwen",
                       .words = {.pattern = kQwen2Pattern},
                       .nfc = true,
                       .special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
                       .numbered = "<|extra_{}|>",
                       .special_count = 208};
  static const std::vector<Family> families = [&] {
    std::vector<Family> list = {
        {.model_type = "llama",
         .words = {.pattern = kLlama3Pattern, .bos = true},
         .special = {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                     "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>",
                     "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
                     "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"},
         .numbered = "<|reserved_special_token_{}|>",
         .special_count = 256},
        qwen};
    for (const char* later : {"qwen2", "qwen3"}) {
      list.push_back(qwen);
      list.back().model_type = later;
      list.back().numbered = "";
      list.back().special_count = 3;
    }
    return list;
  }();
  return families;
}

const Family& FindFamily(const std::string& name, const std::string& where) {
  std::vector<std::string_view> known;
  for (const Family& family : Families()) {
    if (family.model_type == name) return family;
    known.push_back(family.model_type);
  }
  Fail(
      "{}: a file of ranks says neither how words are cut nor which special tokens there are, and "
      "config.json's model_type \"{}\" is none of {}; put the model's tokenizer.json beside it",
      where, name, fmt::join(known, ", "));
}

// Takes the next line; false at the end.
bool TakeLine(std::string_view* rest, std::string_view* line) {
  if (rest->empty()) return false;
  *line = rest->substr(0, rest->find('\n'));
  rest->remove_prefix(std::min(line->size() + 1, rest->size()));
  if (line->ends_with('\r')) line->remove_suffix(1);
  return true;
}

// The token's bytes from a line that has a token and `rank`; nothing for other lines.
std::optional<std::string> TokenOfLine(std::string_view line, size_t rank) {
  const size_t space = line.find(' ');
  if (space == line.npos) return std::nullopt;
  size_t found = 0;
  const auto [end, error] =
      std::from_chars(line.data() + space + 1, line.data() + line.size(), found);
  if (error != std::errc() || end != line.data() + line.size() || found != rank) {
    return std::nullopt;
  }
  auto token = DecodeBase64(line.substr(0, space));
  return token && !token->empty() ? token : std::nullopt;
}

// Reads the tokens, written in the alphabet of byte-level BPE.
std::vector<std::string> ReadTokens(std::string_view text, const std::string& where) {
  std::vector<std::string> tokens;
  std::bitset<256> bytes;
  std::string_view line;
  while (TakeLine(&text, &line)) {
    if (tokens.size() == kMaxRanks) Fail("{}: more than {} ranks", where, kMaxRanks);
    const auto token = TokenOfLine(line, tokens.size());
    if (!token) {
      Fail("{}: line {} must be a token in base64, a space and {}", where, tokens.size() + 1,
           tokens.size());
    }
    if (token->size() == 1) bytes.set(static_cast<unsigned char>((*token)[0]));
    AppendByteChars(*token, &tokens.emplace_back());
  }
  if (!bytes.all()) {
    Fail("{}: only {} of the 256 bytes have a rank; get the file again", where, bytes.count());
  }
  return tokens;
}

Json SpecialTokens(const Family& family, size_t first) {
  Json added = Json::array();
  size_t number = 0;
  // Reserved tokens that `special` lists have taken the first numbers.
  for (const std::string_view name : family.special) number += name.starts_with("<|reserved");
  for (size_t i = 0; i < family.special_count; ++i) {
    const std::string name = i < family.special.size()
                                 ? std::string(family.special[i])
                                 : fmt::format(fmt::runtime(family.numbered), number++);
    added.push_back(AddedToken(static_cast<int64_t>(first + i), name, true));
  }
  return added;
}

// The token with this name, as a list; empty if there is none.
std::vector<NamedToken> Named(const Json& added, const std::string& name) {
  for (const Json& token : added) {
    if (token["content"].get<std::string>() == name) {
      return {{token["id"].get<int64_t>(), name}};
    }
  }
  return {};
}

}  // namespace

bool IsRankFile(std::string_view bytes) {
  std::string_view line;
  return TakeLine(&bytes, &line) && TokenOfLine(line, 0).has_value();
}

std::string RankFileDocument(std::string_view text, const std::string& where,
                             const std::string& family_name, const TokenizerConfig& config) {
  const Family& family = FindFamily(family_name, where);
  const std::vector<std::string> tokens = ReadTokens(text, where);
  std::vector<std::string_view> views(tokens.begin(), tokens.end());
  std::vector<double> scores;
  for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<double>(i));
  TokenizerSurroundings around;
  around.added_tokens =
      config.added_tokens.empty() ? SpecialTokens(family, tokens.size()) : config.added_tokens;
  std::vector<NamedToken> before, after;
  if (config.add_bos.value_or(family.words.bos)) {
    before = Named(around.added_tokens, config.bos.value_or("<|begin_of_text|>"));
  }
  if (config.add_eos.value_or(false)) after = Named(around.added_tokens, config.eos.value_or(""));
  around.frame = TemplateFrame(before, after);
  const Json model = {{"type", "BPE"}, {"ignore_merges", true}};
  return DocumentText(around, family.nfc ? Json{{"type", "NFC"}} : Json(),
                      ByteLevelWords(family.words), ByteLevelComponent(true), model,
                      ScoredVocabularyText(views, scores));
}

}  // namespace nibble
