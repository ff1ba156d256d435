// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <algorithm>

#include "base/file.h"
#include "base/rng.h"
#include "io/io_testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DType kAllTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBf16, DType::kI64,
                               DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};

using SafetensorsTest = TemporaryDirectoryTest;

TEST_F(SafetensorsTest, RoundTripOfEveryType) {
  Rng rng(1);
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<std::string> data;
  for (const DType dtype : kAllTypes) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {7}, {3, 5}, {2, 0, 3}, {1, 2, 1, 2, 1, 2, 1, 3}}) {
      entries.push_back({fmt::format("{}.\"{}\"é", DTypeName(dtype), shape.size()), dtype, shape});
      size_t size = DTypeBytes(dtype);
      for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
      std::string bytes;
      for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(rng.Next()));
      data.push_back(bytes);
    }
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"note", "two\nlines"}};
  for (const char* name : {"first", "second"}) {
    SafetensorsWriter writer(Path(name), entries, metadata);
    for (const std::string& bytes : data) writer.Append(Bytes(bytes));
    EXPECT_FALSE(std::filesystem::exists(Path(name)));
    writer.Finish();
  }
  EXPECT_EQ(ReadFile(Path("first"), 1 << 20), ReadFile(Path("second"), 1 << 20));

  const SafetensorsFile file(Path("first"));
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const Tensor& view = file.tensors().at(entries[i].name);
    EXPECT_EQ(view.dtype, entries[i].dtype);
    EXPECT_EQ(view.shape, entries[i].shape);
    ASSERT_EQ(view.bytes(), data[i].size());
    EXPECT_TRUE(
        std::equal(data[i].begin(), data[i].end(), reinterpret_cast<const char*>(view.data)));
  }
}

TEST_F(SafetensorsTest, WrittenBytesAreTheFormat) {
  const std::vector<SafetensorsWriter::Entry> entries = {{"w", DType::kI16, {2, 1}},
                                                         {"b", DType::kU8, {3}}};
  {
    SafetensorsWriter writer(Path("f"), entries, {{"k", "v"}});
    writer.Append(Bytes("wxyz"));
    writer.Append(Bytes("123"));
    writer.Finish();
  }
  std::string header = R"({"__metadata__":{"k":"v"},)"
                       R"("w":{"dtype":"I16","shape":[2,1],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})";
  while ((8 + header.size()) % 64 != 0) header += ' ';
  EXPECT_EQ(ReadFile(Path("f"), 1000), FileOf(header, 0) + "wxyz123");
  EXPECT_THAT(ErrorOf([&] {
                const SafetensorsWriter::Entry twice[] = {entries[0], entries[0]};
                SafetensorsWriter writer(Path("g"), twice);
              }),
              HasSubstr(Path("g")));
  EXPECT_THAT(ErrorOf([&] {
                SafetensorsWriter writer(Path("g"), entries, {{"k", "\xff"}});
              }),
              AllOf(HasSubstr(Path("g")), HasSubstr("UTF-8")));
}

TEST_F(SafetensorsTest, AcceptsWhatTheFormatAllows) {
  const std::string two =
      TensorJson("b", "I8", "[3]", "[0,3]") + "," + TensorJson("a", "F32", "[1]", "[3,7]");
  const std::string empty = TensorJson("e", "F64", "[4,0]", "[3,3]");
  for (const std::string& fields : std::vector<std::string>{
           two, two + "   ", "\n\t" + two + "\n", R"("__metadata__":{},)" + two,
           two + R"(,"__metadata__":{"a":"b"})", two + "," + empty, empty + "," + two}) {
    const std::string file = FileWith(fields, 7);
    const auto contents = ParseSafetensors(Bytes(file), "f");
    const auto* data = Bytes(file).data() + file.size() - 7;
    EXPECT_EQ(contents.tensors.at("b").data, data);
    EXPECT_EQ(contents.tensors.at("a").data, data + 3);  // unaligned
  }
  EXPECT_TRUE(ParseSafetensors(Bytes(FileOf("{}  ", 0)), "f").tensors.empty());
}

std::vector<Malformed> MalformedLengths() {
  const std::string good = R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  return {
      {"empty file", "", "0 bytes"},
      {"7 bytes", std::string(7, '\1'), "7 bytes"},
      {"no header", FileOf(0, "", 0), "begin with"},
      {"zero length", FileOf(0, good, 4), "begin with"},
      {"length one too long", FileOf(good.size() + 5, good, 4), "header length at offset 0"},
      {"length into data", FileOf(good.size() + 4, good, 4), "not a valid JSON"},
      {"length one short", FileOf(good.size() - 1, good, 4), "not a valid JSON"},
      {"100,000,001", FileOf(100'000'001, good, 4), "100000001"},
      {"2^31", FileOf(1ull << 31, good, 4), "header length"},
      {"2^63", FileOf(1ull << 63, good, 4), "header length"},
      {"N + 8 wraps to 0", FileOf(~0ull - 7, good, 4), "header length"},
      {"N + 8 wraps to 7", FileOf(~0ull, good, 4), "header length"},
      {"leading space", FileOf(" " + good, 4), "begin with"},
      {"byte order mark", FileOf("\xEF\xBB\xBF" + good, 4), "begin with"},
      {"array", FileOf("[" + good + "]", 4), "begin with"},
      {"pickle", "\x80\x02}q\x01.some more bytes", "header length"},
      {"trailing byte", FileOf(good, 5), "ends at data offset 4"},
      {"last byte missing", FileOf(good, 3), "tensor \"t\""},
      {"no data", FileOf(good, 0), "tensor \"t\""},
      {"data without tensors", FileOf("{}", 1), "ends at data offset 0"},
  };
}

std::vector<Malformed> MalformedJson() {
  const std::string t = TensorJson("t", "U8", "[4]", "[0,4]");
  const auto field = [](const std::string& body) { return FileWith("\"t\":" + body, 4); };
  const auto nested = [](const std::string& open, const std::string& close, int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += open;
    text += "1";
    for (int i = 0; i < n; ++i) text += close;
    return text;
  };
  return {
      {"not closed", FileOf("{" + t, 4), "JSON"},
      {"text after the object", FileWith(t + "}x{", 4), "JSON"},
      {"NUL padding", FileOf("{" + t + std::string("}\0\0", 3), 4), "JSON"},
      {"comment", FileWith("/* */" + t, 4), "JSON"},
      {"trailing comma", FileWith(t + ",", 4), "JSON"},
      {"invalid UTF-8", FileWith(TensorJson("\xff", "U8", "[4]", "[0,4]"), 4), "JSON"},
      {"UTF-8 surrogate", FileWith(TensorJson("\xed\xa0\x80", "U8", "[4]", "[0,4]"), 4), "JSON"},
      {"high surrogate alone", FileWith(TensorJson("\\ud800", "U8", "[4]", "[0,4]"), 4), ""},
      {"low surrogate alone", FileWith(TensorJson("\\udc00", "U8", "[4]", "[0,4]"), 4), ""},
      {"NUL in name", FileWith(TensorJson("a\\u0000b", "U8", "[4]", "[0,4]"), 4), "control"},
      {"escape code in name", FileWith(TensorJson("\\u001b[2J", "U8", "[4]", "[0,4]"), 4),
       "control"},
      {"name of 5000 bytes", FileWith(TensorJson(std::string(5000, 'n'), "U8", "[4]", "[0,4]"), 4),
       "4096"},
      {"depth bomb of objects", field(nested("{\"a\":", "}", 100'000)), "JSON"},
      {"depth bomb of arrays", field(nested("[", "]", 1'000'000)), "JSON"},
      {"unclosed depth bomb", field(std::string(1'000'000, '[')), "JSON"},
      {"depth bomb in shape", FileWith(TensorJson("t", "U8", nested("[", "]", 30), "[0,4]"), 4),
       "JSON"},
      {"duplicate tensor", FileWith(t + "," + t, 4), "duplicate tensor \"t\""},
      {"duplicate tensor by escape",
       FileWith(t + "," + TensorJson("\\u0074", "U8", "[4]", "[0,4]"), 4),
       "duplicate tensor \"t\""},
      {"duplicate empty tensor",
       FileWith(t + "," + TensorJson("e", "U8", "[0]", "[4,4]") + "," +
                    TensorJson("e", "U8", "[0]", "[4,4]"),
                4),
       "duplicate tensor \"e\""},
      {"duplicate dtype", field(R"({"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"),
       "tensor \"t\": duplicate"},
      {"duplicate shape", field(R"({"dtype":"U8","shape":[9],"shape":[4],"data_offsets":[0,4]})"),
       "tensor \"t\": duplicate"},
      {"duplicate offsets",
       field(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[0,4]})"),
       "tensor \"t\": duplicate"},
      {"unknown field", field(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"stride":1})"),
       "\"stride\""},
      {"no dtype", field(R"({"shape":[4],"data_offsets":[0,4]})"), "are needed"},
      {"no shape", field(R"({"dtype":"U8","data_offsets":[0,4]})"), "are needed"},
      {"no offsets", field(R"({"dtype":"U8","shape":[4]})"), "are needed"},
      {"tensor is a number", field("4"), "tensor \"t\" must be an object"},
      {"tensor is null", field("null"), "tensor \"t\" must be an object"},
      {"metadata twice", FileWith("\"__metadata__\":{},\"__metadata__\":{}," + t, 4),
       "duplicate key"},
      {"metadata key twice", FileWith("\"__metadata__\":{\"a\":\"\",\"a\":\"\"}," + t, 4),
       "duplicate key \"a\""},
      {"metadata is a tensor", FileWith(TensorJson("__metadata__", "U8", "[4]", "[0,4]"), 4),
       "must be a string"},
      {"metadata is a string", FileWith("\"__metadata__\":\"x\"," + t, 4), "must be an object"},
      {"metadata of numbers", FileWith("\"__metadata__\":{\"a\":1}," + t, 4),
       "\"a\" must be a string"},
  };
}

std::vector<Malformed> MalformedTensors() {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return FileWith(TensorJson("t", dtype, shape, offsets), 4);
  };
  const auto two = [](const std::string& first, const std::string& second) {
    return FileWith(
        TensorJson("t", "U8", "[2]", first) + "," + TensorJson("s", "U8", "[2]", second), 4);
  };
  std::string rank_10000 = "[1";
  for (int i = 1; i < 10'000; ++i) rank_10000 += ",1";
  rank_10000 += "]";
  return {
      {"unknown dtype", one("F4", "[8]", "[0,4]"), "\"F4\""},
      {"lower case dtype", one("u8", "[4]", "[0,4]"), "\"u8\""},
      {"empty dtype", one("", "[4]", "[0,4]"), "dtype"},
      {"dtype with control characters", one("U8\\n", "[4]", "[0,4]"), "control"},
      {"dtype is a number", FileOf(R"({"t":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4),
       "dtype"},
      {"wrong dtype", one("F32", "[4]", "[0,4]"), "needs 16"},
      {"negative extent", one("U8", "[-4]", "[0,4]"), "shape"},
      {"two negative extents", one("U8", "[-2,-2]", "[0,4]"), "shape"},
      {"fraction", one("U8", "[4.0]", "[0,4]"), "shape"},
      {"exponent", one("U8", "[4e0]", "[0,4]"), "shape"},
      {"string extent", one("U8", "[\"4\"]", "[0,4]"), "shape"},
      {"null extent", one("U8", "[null]", "[0,4]"), "shape"},
      {"true extent", one("U8", "[true]", "[0,4]"), "shape"},
      {"shape is a number", one("U8", "4", "[0,4]"), "shape"},
      {"extent 2^63", one("U8", "[9223372036854775808]", "[0,4]"), "shape"},
      {"extent 2^64", one("U8", "[18446744073709551616]", "[0,4]"), ""},
      {"extent NaN", one("U8", "[NaN]", "[0,4]"), "JSON"},
      {"product wraps to 0", one("U8", "[4294967296,4294967296]", "[0,0]"), "too large"},
      {"product wraps to 4", one("F32", "[4611686018427387905]", "[0,4]"), "too large"},
      {"bytes above 2^63", one("F32", "[3000000000000000000]", "[0,4]"), "too large"},
      {"overflow hidden by a zero", one("U8", "[0,4294967296,4294967296]", "[0,0]"), "too large"},
      {"rank 9", one("U8", "[4,1,1,1,1,1,1,1,1]", "[0,4]"), "more than 8"},
      {"rank 10,000", one("U8", rank_10000, "[0,1]"), "more than 8"},
      {"shape too small", one("U8", "[3]", "[0,4]"), "data_offsets [0, 4] hold 4 bytes"},
      {"shape too big", one("U8", "[5]", "[0,4]"), "needs 5"},
      {"scalar of four bytes", one("U8", "[]", "[0,4]"), "needs 1"},
      {"offset beyond the data", one("U8", "[5]", "[0,5]"), "data_offsets [0, 5]"},
      {"offsets far beyond", one("U8", "[4]", "[9223372036854775803,9223372036854775807]"),
       "9223372036854775803"},
      {"offsets swapped", one("U8", "[4]", "[4,0]"), "data_offsets [4, 0]"},
      {"negative offset", one("U8", "[4]", "[-4,0]"), "data_offsets"},
      {"one offset", one("U8", "[4]", "[4]"), "are needed"},
      {"three offsets", one("U8", "[4]", "[0,4,4]"), "more than 2"},
      {"offset 2^64", one("U8", "[4]", "[0,18446744073709551620]"), ""},
      {"hole at the start", one("U8", "[3]", "[1,4]"), "data_offsets [1, 4]"},
      {"hole at the end", one("U8", "[3]", "[0,3]"), "ends at data offset 3"},
      {"hole between",
       FileWith(TensorJson("t", "U8", "[1]", "[0,1]") + "," + TensorJson("s", "U8", "[2]", "[2,4]"),
                4),
       "tensor \"s\""},
      {"overlap",
       FileWith(TensorJson("t", "U8", "[3]", "[0,3]") + "," + TensorJson("s", "U8", "[2]", "[2,4]"),
                4),
       "tensor \"s\""},
      {"same place twice", two("[0,2]", "[0,2]"), "tensor"},
      {"whole overlap", two("[2,4]", "[2,4]"), "tensor"},
      {"empty tensor outside",
       FileWith(TensorJson("t", "U8", "[4]", "[0,4]") + "," + TensorJson("e", "U8", "[0]", "[5,5]"),
                4),
       "tensor \"e\""},
      {"empty tensor inside another",
       FileWith(TensorJson("t", "U8", "[4]", "[0,4]") + "," + TensorJson("e", "U8", "[0]", "[2,2]"),
                4),
       "tensor \"e\""},
  };
}

TEST_F(SafetensorsTest, MalformedFilesAreRefusedByName) {
  std::vector<Malformed> cases;
  for (const auto& group : {MalformedLengths(), MalformedJson(), MalformedTensors()}) {
    cases.insert(cases.end(), group.begin(), group.end());
  }
  for (const Malformed& c : cases) {
    WriteFileAtomic(Path("bad.safetensors"), c.file);
    const std::string error = ErrorOf([&] { SafetensorsFile file(Path("bad.safetensors")); });
    EXPECT_THAT(error, AllOf(HasSubstr(Path("bad.safetensors")), HasSubstr(c.message),
                             Not(HasSubstr("\n"))))
        << c.what;
    EXPECT_LT(error.size(), 6000u) << c.what;
  }
}

TEST_F(SafetensorsTest, HeadersThatTakeManyTimesTheirBytesAreRefused) {
  const auto error = [](const std::string& file) {
    return ErrorOf([&] { ParseSafetensors(Bytes(file), "dir/f"); });
  };
  // Values of a list take the parser 24 bytes for each 2.
  std::string zeros = "[0";
  for (int i = 0; i < 1 << 22; ++i) zeros += ",0";
  EXPECT_THAT(error(FileWith(R"("__metadata__":{"a":)" + zeros + "]}", 0)),
              AllOf(HasSubstr("dir/f: "), HasSubstr("JSON tokens")));
  std::string tensors = TensorJson("", "U8", "[0]", "[0,0]");
  for (int i = 1; i < 1 << 18; ++i) {
    tensors += fmt::format(R"(,"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i);
  }
  EXPECT_THAT(error(FileWith(tensors + "," + TensorJson("x", "U8", "[0]", "[0,0]"), 0)),
              AllOf(HasSubstr("dir/f: "), HasSubstr("over 262144 tensors")));
}

TEST_F(SafetensorsTest, TruncationAtEveryOffsetIsRefused) {
  const std::string good = FileWith(
      TensorJson("a", "F32", "[2,3]", "[0,24]") + "," + TensorJson("b", "I64", "[5]", "[24,64]"),
      64);
  ASSERT_EQ(ParseSafetensors(Bytes(good), "f").tensors.size(), 2u);
  for (size_t size = 0; size < good.size(); ++size) {
    const std::string cut = good.substr(0, size);  // its own allocation: ASan sees any overrun
    EXPECT_THAT(ErrorOf([&] { ParseSafetensors(Bytes(cut), "cut.st"); }), HasSubstr("cut.st"))
        << size;
  }
}

// Any byte changed: refused or still within bounds.
TEST_F(SafetensorsTest, ChangedBytesNeverLeaveTheFile) {
  const std::string good = FileWith(
      TensorJson("a", "U8", "[2,3]", "[0,6]") + "," + TensorJson("b", "I8", "[5]", "[6,11]"), 11);
  Rng rng(2);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string file = good;
    for (uint64_t n = rng.Below(3) + 1; n > 0; --n) {
      file[rng.Below(file.size())] = static_cast<char>(rng.Below(128));
    }
    try {
      for (const auto& [name, view] : ParseSafetensors(Bytes(file), "f").tensors) {
        ASSERT_GE(view.data, Bytes(file).data());
        ASSERT_LE(view.data + view.bytes(), Bytes(file).data() + file.size());
      }
      ++accepted;
    } catch (const Error& e) {
      ASSERT_THAT(e.what(), HasSubstr("f: "));
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 10'000);
}

}  // namespace
}  // namespace nibble
