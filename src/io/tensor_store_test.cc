// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "base/error.h"
#include "io/io_testing.h"
#include "io/safetensors.h"
#include "io/sha256.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TensorStoreTest : public TemporaryDirectoryTest {
 protected:
  // Empties the directory and writes a two-shard model of tensors a and b, one byte each.
  void MakeShards(const std::string& directory, const std::string& index) {
    fs::remove_all(root_ / directory);
    fs::create_directories(root_ / directory);
    WriteFileAtomic(Path(directory + "/one"), FileWith(TensorJson("a", "U8", "[1]", "[0,1]"), 1));
    WriteFileAtomic(Path(directory + "/two"), FileWith(TensorJson("b", "U8", "[1]", "[0,1]"), 1));
    WriteFileAtomic(Path(directory + "/model.safetensors.index.json"), index);
  }
  static std::string Index(const std::string& shard_of_b) {
    return R"({"metadata":{"total_size":2},"weight_map":{"a":"one","b":")" + shard_of_b + "\"}}";
  }
};

TEST_F(TensorStoreTest, StoreOfShards) {
  const std::string directory = NIBBLE_SOURCE_DIR "/tests/data/architectures/llama2";
  const TensorStore store(directory);
  EXPECT_EQ(store.names().size(), 21u);
  EXPECT_EQ(store.total_bytes(), 329'344u);  // total_size of its index
  // Digests made with Python's hashlib on the byte ranges of the shards.
  const std::map<std::string, std::string> digests = {
      {"lm_head.weight", "52bcdbe9b36715b84b8353896f63aed723874a91551bdbc1c5cd2ac25b05fde8"},
      {"model.layers.1.self_attn.q_proj.weight",
       "261b8b175f6c44cce54f5cc1d3fdf6668c081401d5665d0bb6c770c22ea7bb75"},
      {"model.norm.weight", "400ad04c459f5216c3421ced936e5f2e5744300efb481dd908edfc0911311866"}};
  for (const auto& [name, digest] : digests) {
    const Tensor& view = store.Get(name);
    EXPECT_EQ(Sha256({view.data, view.bytes()}), digest) << name;
  }
  EXPECT_EQ(store.Get("lm_head.weight").dtype, DType::kBf16);
  EXPECT_EQ(store.Get("lm_head.weight").shape, (std::vector<int64_t>{512, 64}));
  EXPECT_EQ(store.Find("lm_head.weigh"), nullptr);
  EXPECT_THAT(ErrorOf([&] { store.Get("absent"); }),
              AllOf(HasSubstr(directory), HasSubstr("absent")));
}

TEST_F(TensorStoreTest, StoreOfOneFileAndOfNone) {
  MakeShards("m", Index("two"));
  const TensorStore moved = TensorStore(Path("m"));
  EXPECT_EQ(moved.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(static_cast<int>(*moved.Get("b").data), 11);
  fs::copy(Path("m/one"), Path("m/model.safetensors"));
  EXPECT_EQ(TensorStore(Path("m")).names(), std::vector<std::string>{"a"});
  EXPECT_THAT(ErrorOf([&] { TensorStore store(Path("none")); }), HasSubstr(Path("none")));
}

TEST_F(TensorStoreTest, BadIndexesAreRefusedByName) {
  const std::string index_name = "model.safetensors.index.json";
  const std::vector<Malformed> cases = {
      {"shard outside", Index("../../etc/passwd"), "plain file name"},
      {"absolute", Index("/etc/passwd"), "plain file name"},
      {"below", Index("sub/two"), "plain file name"},
      {"parent", Index(".."), "plain file name"},
      {"itself", Index("."), "plain file name"},
      {"empty", Index(""), "plain file name"},
      {"NUL", Index("two\\u0000.safetensors"), "control"},
      {"absent shard", Index("three"), "missing"},
      {"swapped", R"({"weight_map":{"a":"two","b":"one"}})", "no tensor \"a\""},
      {"tensor absent", R"({"weight_map":{"a":"one","c":"two"}})", "no tensor \"c\""},
      {"shard is a directory", Index("dir"), "not a regular file"},
      {"shard is the index", Index(index_name), "header length"},
      {"no weight_map", "{}", "weight_map"},
      {"two weight_maps", R"({"weight_map":{},"weight_map":{}})", "duplicate"},
      {"tensor twice", R"({"weight_map":{"a":"one","a":"two"}})", "duplicate"},
      {"weight_map of numbers", R"({"weight_map":{"a":1}})", "must be a string"},
      {"weight_map is a list", R"({"weight_map":["one"]})", "must be an object"},
      {"empty file", "", "JSON"},
      {"list", "[]", "JSON"},
      {"cut", R"({"weight_map":{"a":"one")", "JSON"},
      {"invalid UTF-8", Index("\xff"), "JSON"},
      {"depth bomb", std::string(1'000'000, '['), "JSON"},
  };
  for (const Malformed& c : cases) {
    MakeShards("m", c.file);
    fs::create_directory(Path("m/dir"));
    const std::string error = ErrorOf([&] { TensorStore store(Path("m")); });
    EXPECT_THAT(error, AllOf(HasSubstr(Path("m")), HasSubstr(c.message), Not(HasSubstr("\n"))))
        << c.what;
  }
  MakeShards("m", Index("two"));
  fs::resize_file(Path("m/two"), fs::file_size(Path("m/two")) - 1);
  EXPECT_THAT(ErrorOf([&] { TensorStore store(Path("m")); }),
              AllOf(HasSubstr(Path("m/two")), HasSubstr("truncated")));
}

// weight_map {"0": "s0", "1": "s1", ...}
std::string IndexOfShards(int shards) {
  std::string entries;
  for (int i = 0; i < shards; ++i) entries += fmt::format(R"({}"{}":"s{}")", i ? "," : "", i, i);
  return R"({"weight_map":{)" + entries + "}}";
}

TEST_F(TensorStoreTest, ManyShardsAndManyTensorsAreRefused) {
  MakeShards("m", IndexOfShards(8193));
  EXPECT_THAT(ErrorOf([&] { TensorStore store(Path("m")); }), HasSubstr("over 8192 shards"));
  // 33 names of one file of 8000 tensors: as views they take 33 times its memory.
  MakeShards("m", IndexOfShards(33));
  std::string tensors;
  for (int i = 0; i < 8000; ++i) {
    tensors += (i ? "," : "") + TensorJson(std::to_string(i), "U8", "[0]", "[0,0]");
  }
  WriteFileAtomic(Path("m/s0"), FileWith(tensors, 0));
  for (int i = 1; i < 33; ++i) fs::create_hard_link(Path("m/s0"), Path(fmt::format("m/s{}", i)));
  EXPECT_THAT(ErrorOf([&] { TensorStore store(Path("m")); }), HasSubstr("over 262144 tensors"));
}

TEST_F(TensorStoreTest, SymlinksStayInsideTheModel) {
  MakeShards("outside", Index("two"));
  const auto link_two = [&](const std::string& directory, const std::string& target) {
    MakeShards(directory, Index("two"));
    fs::remove(Path(directory + "/two"));
    fs::create_symlink(target, Path(directory + "/two"));
    return ErrorOf([&] {
      if (TensorStore(Path(directory)).names().size() != 2) Fail("tensors are missing");
    });
  };
  const std::string cache = "hub/models--org--name/snapshots/0123abcd";
  fs::create_directories(Path("hub/models--org--name/blobs"));
  fs::copy(Path("outside/two"), Path("hub/models--org--name/blobs/f00d"));
  for (const char* place : {"hub/blobs", "hub/other/blobs", "hub/not-models--org/blobs",
                            "hub/models--org--name/blobs-too", "hub/models--org--name"}) {
    fs::create_directories(Path(place));
    fs::copy(Path("outside/two"), Path(place) + "/f00d");
  }

  EXPECT_EQ(link_two(cache, "../../blobs/f00d"), "");
  EXPECT_THAT(link_two("m", "../m/one"), HasSubstr("no tensor \"b\""));  // followed
  for (const auto& [directory, target] : std::vector<std::pair<std::string, std::string>>{
           {"m", "../outside/two"},
           {"m", Path("outside/two")},
           {"m", "/etc/passwd"},
           {cache, "../../../blobs/f00d"},
           {cache, "../../../../outside/two"},
           {cache, "../../f00d"},            // not among the blobs
           {cache, "../../blobs-too/f00d"},  // a name that begins alike
           {"hub/other/snapshots/0123abcd", "../../blobs/f00d"},
           {"hub/not-models--org/snapshots/0123abcd", "../../blobs/f00d"},
           {"hub/models--org--name/notes/x", "../../blobs/f00d"}}) {
    EXPECT_THAT(link_two(directory, target), HasSubstr("leads outside")) << target;
  }
  EXPECT_THAT(link_two("m", "nowhere"), HasSubstr("missing"));
  EXPECT_THAT(link_two("m", "two"), HasSubstr(Path("m/two")));  // a loop

  // The directory itself, the index and the single file may be links under the same rule.
  fs::create_directory_symlink(Path("outside"), Path("alias"));
  EXPECT_EQ(TensorStore(Path("alias")).names().size(), 2u);
  fs::create_directory(Path("s"));
  fs::create_symlink("../outside/one", Path("s/model.safetensors"));
  EXPECT_THAT(ErrorOf([&] { TensorStore store(Path("s")); }), HasSubstr("leads outside"));
}

}  // namespace
}  // namespace nibble
