// SPDX-License-Identifier: Apache-2.0
// A SentencePiece model: the protobuf message ModelProto of github.com/google/sentencepiece,
// src/sentencepiece_model.proto, of which the fields named here matter.
#include <algorithm>
#include <map>

#include "source/protobuf.h"
#include "source/tokenizer_files.h"

namespace nibble {
namespace {

// The largest known vocabularies have 262,144 pieces in 5 MB; a document takes several times that.
constexpr size_t kMaxPieces = 1 << 19, kMaxModelBytes = 16 << 20;

enum ModelField : uint32_t { kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5 };
enum PieceField : uint32_t { kText = 1, kScore = 2, kType = 3 };
enum TrainerField : uint32_t {
  kModelType = 3,
  kWhitespaceAsSuffix = 24,
  kByteFallback = 35,
  kBosId = 41,
  kEosId = 42
};
enum NormalizerField : uint32_t { kCharsmap = 2, kDummyPrefix = 3, kRemoveExtra = 4, kEscape = 5 };

struct Trainer {
  uint64_t model_type = 1;
  int64_t bos = 1, eos = 2;
};

void ReadPiece(ProtobufReader message, SentencePieceModel* model) {
  if (model->pieces.size() == kMaxPieces) {
    Fail("{}: more than {} pieces", model->where, kMaxPieces);
  }
  std::string_view text;
  float score = 0;
  uint64_t type = kNormal;
  while (message.Next()) {
    if (message.number() == kText) text = message.Text();
    if (message.number() == kScore) score = message.Float();
    if (message.number() == kType) type = message.Varint();
  }
  if (text.empty()) Fail("{}: piece {} is empty", model->where, model->pieces.size());
  model->pieces.push_back(text);
  model->scores.push_back(score);
  model->types.push_back(static_cast<int64_t>(std::min<uint64_t>(type, kByte + 1)));
}

Trainer ReadTrainer(ProtobufReader message, SentencePieceModel* model) {
  Trainer trainer;
  while (message.Next()) {
    switch (message.number()) {
      case kModelType:
        trainer.model_type = message.Varint();
        break;
      case kWhitespaceAsSuffix:
        if (message.Bool()) {
          Fail("{}: treat_whitespace_as_suffix is not supported; convert it to tokenizer.json",
               model->where);
        }
        break;
      case kByteFallback:
        model->byte_fallback = message.Bool();
        break;
      case kBosId:
        trainer.bos = static_cast<int64_t>(message.Varint());
        break;
      case kEosId:
        trainer.eos = static_cast<int64_t>(message.Varint());
        break;
      default:
        break;
    }
  }
  if (trainer.model_type != 1 && trainer.model_type != 2) {
    Fail("{}: model type {} is not supported (1 unigram and 2 BPE are)", model->where,
         trainer.model_type);
  }
  model->unigram = trainer.model_type == 1;
  return trainer;
}

void ReadNormalizer(ProtobufReader message, SentencePieceModel* model) {
  while (message.Next()) {
    switch (message.number()) {
      case kCharsmap:
        model->charsmap = message.Bytes();
        break;
      case kDummyPrefix:
        model->add_dummy_prefix = message.Bool();
        break;
      case kRemoveExtra:
        model->remove_extra_whitespaces = message.Bool();
        break;
      case kEscape:
        model->escape_whitespaces = message.Bool();
        break;
      default:
        break;
    }
  }
}

// A denormalizer would change decoded texts.
void RefuseDenormalizer(ProtobufReader message, const std::string& where) {
  while (message.Next()) {
    if (message.number() == kCharsmap && !message.Bytes().empty()) {
      Fail("{}: a denormalizer is not supported; convert it to tokenizer.json", where);
    }
  }
}

Trainer ReadModel(std::string_view bytes, SentencePieceModel* model) {
  ProtobufReader message(bytes, model->where);
  Trainer result;
  while (message.Next()) {
    switch (message.number()) {
      case kPieces:
        ReadPiece(ProtobufReader(message.Bytes(), model->where + ": a piece"), model);
        break;
      case kTrainer:
        result =
            ReadTrainer(ProtobufReader(message.Bytes(), model->where + ": trainer_spec"), model);
        break;
      case kNormalizer:
        ReadNormalizer(ProtobufReader(message.Bytes(), model->where + ": normalizer_spec"), model);
        break;
      case kDenormalizer:
        RefuseDenormalizer(ProtobufReader(message.Bytes(), model->where + ": denormalizer_spec"),
                           model->where);
        break;
      default:
        break;
    }
  }
  return result;
}

// Joins the model's added tokens with those of tokenizer_config.json, which win where both name an
// id.
Json MergeAdded(const Json& pieces, const Json& configured) {
  std::map<int64_t, Json> by_id;
  for (const Json* list : {&pieces, &configured}) {
    for (const Json& token : *list) by_id[token["id"].get<int64_t>()] = token;
  }
  Json merged = Json::array();
  for (auto& [id, token] : by_id) merged.push_back(std::move(token));
  return merged;
}

// The token with this text, else the control piece with this id.
std::optional<NamedToken> FindToken(const SentencePieceModel& model, const Json& added,
                                    const std::optional<std::string>& text, int64_t id) {
  for (const Json& token : added) {
    const auto content = token["content"].get<std::string>();
    const auto token_id = token["id"].get<int64_t>();
    if (text ? content == *text : token_id == id) return NamedToken{token_id, content};
  }
  if (!text) return std::nullopt;
  Fail("{}: tokenizer_config.json names the token {}, which it does not have", model.where, *text);
}

}  // namespace

std::string SentencePieceFileDocument(std::string_view bytes, const std::string& where,
                                      const TokenizerConfig& config) {
  if (bytes.size() > kMaxModelBytes) {
    Fail("{}: {} bytes are no SentencePiece model, at most {} are read", where, bytes.size(),
         kMaxModelBytes);
  }
  SentencePieceModel model = {.where = where, .unigram = true};
  const Trainer trainer = ReadModel(bytes, &model);
  TokenizerSurroundings around = {.added_tokens =
                                      MergeAdded(AddedPieces(model), config.added_tokens)};
  std::vector<NamedToken> before, after;
  const auto add = [&](bool wanted, const std::optional<std::string>& text, int64_t id,
                       std::vector<NamedToken>* tokens) {
    if (!wanted) return;
    if (const auto token = FindToken(model, around.added_tokens, text, id)) {
      tokens->push_back(*token);
    }
  };
  add(config.add_bos.value_or(true), config.bos, trainer.bos, &before);
  add(config.add_eos.value_or(false), config.eos, trainer.eos, &after);
  around.frame = TemplateFrame(before, after);
  return SentencePieceDocument(model, around);
}

}  // namespace nibble
