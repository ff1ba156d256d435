// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as a Hugging Face tokenizer.json with a model of type BPE (byte-level
// or SentencePiece-style with byte fallback) or Unigram describes it. Gives the ids and texts of
// the library `tokenizers`. Thread-safe once loaded. Loading throws kFailed, bad text kUsage.
//
// What would change ids and is not understood is refused while loading, with the file and the
// component. "truncation" and "padding" are not applied; transformers sets both anew for every
// call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class DecoderRun;

class Tokenizer {
 public:
  // tokenizer.json of a model directory, or what stands in its place: a SentencePiece model or a
  // file of ranks (source/tokenizer_files.h), a GGUF file's keys.
  static Tokenizer Load(const std::string& model);
  // Makes a tokenizer of the content of a file; `where` names it in messages.
  static Tokenizer Parse(std::string_view json, const std::string& where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Special tokens written in the text become their ids. add_special puts the file's own ones (BOS)
  // around. Text that is not valid UTF-8 is an Error.
  std::vector<int32_t> Encode(std::string_view text, bool add_special = true) const;
  // Encodes text that must not contain control tokens, such as a user's: "</s>" is four characters.
  std::vector<int32_t> EncodePlain(std::string_view text) const;
  // Ids without a token give nothing: models pad their vocabulary beyond the tokenizer's.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  int64_t vocab_size() const;                                    // largest id + 1
  std::optional<int32_t> TokenId(std::string_view token) const;  // added tokens included
  std::string TokenText(int32_t id) const;  // as in the file, for display; "" without a token
  bool IsSpecial(int32_t id) const;
  // The bytes that the token adds to a text that has begun, not always whole characters: "\xE2" of
  // <0xE2>, a space of "▁". Special tokens and ids without a token add nothing.
  std::string TokenBytes(int32_t id) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  static Tokenizer ParseOwned(std::string json, const std::string& where);
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Decodes one text id by id. What Push returns is always valid UTF-8: an incomplete character, or a
// run of byte tokens, waits for what follows. All of Push together with Flush equal Decode.
// The tokenizer may be moved but must outlive this.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string Push(int32_t id);
  std::string Flush();  // the end of the text; a new text needs a new decoder

 private:
  const Tokenizer::Impl* impl_;
  bool skip_special_;
  std::unique_ptr<DecoderRun> run_;
};

}  // namespace nibble
