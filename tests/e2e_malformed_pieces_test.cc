// SPDX-License-Identifier: Apache-2.0
// Damaged SentencePiece models (tokenizer.model), written by hand in protobuf's encoding of
// sentencepiece_model.proto.
#include <cmath>

#include "source/protobuf_testing.h"
#include "tests/e2e_malformed_testing.h"

namespace nibble {
namespace {

using proto::Message;
using proto::Number;
using proto::Piece;
using proto::Real;
using proto::Varint;

enum Section : uint64_t { kPiece = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5 };

// A good BPE model of five pieces.
const std::vector<std::string>& Sections() {
  static const std::vector<std::string> sections = {
      Piece("<unk>", 0, 2),
      Piece("<s>", 0, 3),
      Piece("</s>", 0, 3),
      Piece("\xE2\x96\x81", -1, 1),
      Piece("a", -2, 1),
      Message(kTrainer, Number(3, 2) + Number(41, 1) + Number(42, 2)),
      Message(kNormalizer, Number(3, 1) + Number(4, 1) + Number(5, 1))};
  return sections;
}

std::string Joined(const std::vector<std::string>& sections) {
  std::string bytes;
  for (const std::string& section : sections) bytes += section;
  return bytes;
}

struct Damage {
  const char* name;
  std::string bytes;
  const char* what;
};

// Bytes that make a good model a bad one when they stand behind it.
std::vector<Damage> Appended() {
  const std::string charsmap = "a piece of text that is no trie";
  return {
      {"piece without text", Message(kPiece, Real(2, 0)), "piece 5 is empty"},
      {"piece of no bytes", Piece("", 0, 1), "piece 5 is empty"},
      {"piece of bytes that are no UTF-8", Piece("\xFF\xFE", 0, 1), "not valid UTF-8"},
      {"piece of half a character", Piece("\xE2\x96", 0, 1), "not valid UTF-8"},
      {"piece that stands twice", Piece("a", 0, 1), "stands twice"},
      {"piece that is too long", Piece(std::string(1 << 14, 'x'), 0, 1), "16384 bytes"},
      {"piece of type 0", Piece("b", 0, 0), "type 0 of piece 5"},
      {"piece of type 7", Piece("b", 0, 7), "type 7 of piece 5"},
      {"piece of type 2^64 - 1", Piece("b", 0, ~uint64_t{0}), "of piece 5 is not known"},
      {"second unknown piece", Piece("<no>", 0, 2), "2 pieces are the unknown one"},
      {"score that is NaN", Piece("b", NAN, 1), "score of piece 5"},
      {"infinite score", Piece("b", INFINITY, 1), "score of piece 5"},
      {"infinite score below 0", Piece("b", -INFINITY, 1), "score of piece 5"},
      {"text that is a number", Message(kPiece, Number(1, 7)), "field 1 has another type"},
      {"score that is a number", Message(kPiece, Number(2, 7)), "field 2 has another type"},
      {"type that is a text", Message(kPiece, Message(3, "x")), "field 3 has another type"},
      {"pieces that are a number", Number(kPiece, 7), "field 1 has another type"},
      {"model type 0", Message(kTrainer, Number(3, 0)), "model type 0 is not supported"},
      {"words", Message(kTrainer, Number(3, 3)), "model type 3 is not supported"},
      {"characters", Message(kTrainer, Number(3, 4)), "model type 4 is not supported"},
      {"model type 2^63", Message(kTrainer, Number(3, 1ull << 63)), "is not supported"},
      {"model type that is a text", Message(kTrainer, Message(3, "BPE")), "field 3 has another"},
      {"spaces behind words", Message(kTrainer, Number(24, 1)), "treat_whitespace_as_suffix"},
      {"trainer that is a number", Number(kTrainer, 1), "field 2 has another type"},
      {"charsmap of 1 byte", Message(kNormalizer, Message(2, "x")), "charsmap is damaged"},
      {"charsmap of text", Message(kNormalizer, Message(2, charsmap)), "charsmap is damaged"},
      {"charsmap of an empty trie", Message(kNormalizer, Message(2, std::string(8, '\0'))),
       "charsmap is damaged"},
      {"charsmap that is a number", Message(kNormalizer, Number(2, 1)), "field 2 has another type"},
      {"flag that is a text", Message(kNormalizer, Message(3, "yes")), "field 3 has another type"},
      {"denormalizer", Message(kDenormalizer, Message(2, charsmap)), "a denormalizer is not"},
      {"field 0", Number(0, 1), "damaged"},
      {"field 2^40", Number(1ull << 40, 1), "damaged"},
      {"group", Varint(9 << 3 | 3), "damaged"},
      {"wire type 7", Varint(9 << 3 | 7), "damaged"},
      {"number of 11 bytes", Varint(9 << 3) + std::string(10, '\xFF') + '\1', "damaged"},
      {"number of 70 bits", Varint(9 << 3) + std::string(9, '\xFF') + '\x7F', "damaged"},
      {"length of 2^64 - 1", Varint(kPiece << 3 | 2) + Varint(~uint64_t{0}), "damaged"},
      {"length of a byte too many", Varint(kPiece << 3 | 2) + Varint(2) + "x", "damaged"},
      {"message that leaves the piece", Message(kPiece, "\x0A\x7Fx"), "a piece: cut off"},
      {"half of a double", Varint(9 << 3 | 1) + "1234", "damaged"},
  };
}

class MalformedPieces : public MalformedFormat {
 protected:
  void Expect(const std::string& name, const std::string& bytes, const std::string& what) {
    Spill(Path("tokenizer.model"), bytes);
    ExpectRefused(name, bytes, Tokenize(), what);
  }
  Arguments Tokenize() const { return {"tokenize", root_.string(), "--text", "a"}; }
};

TEST_F(MalformedPieces, AreRefusedInOneLine) {
  const std::string whole = Joined(Sections());
  Spill(Path("tokenizer.model"), whole);
  ExpectAccepted(Tokenize());
  // A file cut between two sections is no error but a smaller model.
  for (size_t i = 0, begin = 0; i < Sections().size(); begin += Sections()[i++].size()) {
    for (const size_t size : {size_t{1}, size_t{2}, Sections()[i].size() - 1}) {
      Expect(fmt::format("{} bytes of section {}", size, i), whole.substr(0, begin + size),
             "cut off or damaged");
    }
  }
  for (const auto& [name, bytes, what] : Appended()) Expect(name, whole + bytes, what);
  Expect("empty", "", "there are no pieces");
  Expect("no piece", Joined({Sections().end() - 2, Sections().end()}), "there are no pieces");
  Expect("text", "not a model", "damaged");
  Expect("zeros", std::string(1000, '\0'), "damaged");
  Expect("Unigram without the unknown piece", Piece("a", 0, 1) + Message(kTrainer, Number(3, 1)),
         "unk_id is missing");
  std::string many;
  for (int i = 0; i <= 1 << 19; ++i) many += Message(kPiece, Message(1, "a"));
  Expect("too many pieces", many, "more than 524288 pieces");
  Expect("too many bytes", std::string((16 << 20) + 1, 'x'), "at most 16777216 are read");
}

}  // namespace
}  // namespace nibble
