// SPDX-License-Identifier: Apache-2.0
#include "source/hub_cache.h"

#include <cstdlib>

#include "io/atomic_file.h"
#include "io/io_testing.h"
#include "source/model_source.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class HubCacheTest : public TemporaryDirectoryTest {
 protected:
  void SetUp() override {
    TemporaryDirectoryTest::SetUp();
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
    setenv("HOME", root_.c_str(), 1);
  }
  std::string Make(const std::string& path, const std::string& text = "{}") {
    fs::create_directories(fs::path(Path(path)).parent_path());
    WriteFileAtomic(Path(path), text);
    return fs::path(Path(path)).parent_path().string();
  }
};

TEST_F(HubCacheTest, ANameIsItsSnapshot) {
  const std::string hub = ".cache/huggingface/hub/models--org--some.model-1";
  EXPECT_EQ(ResolveModel("org/some.model-1"), "org/some.model-1");
  const std::string old = Make(hub + "/snapshots/0123/config.json");
  EXPECT_EQ(ResolveModel("org/some.model-1"), old);
  EXPECT_EQ(ResolveModel(Path(hub)), old);
  EXPECT_EQ(ResolveModel(Path(hub) + "/"), old);
  const std::string main = Make(hub + "/snapshots/89ab/config.json");
  EXPECT_EQ(ResolveModel("org/some.model-1"), Path(hub)) << "two, and no refs/main";
  Make(hub + "/refs/main", "89ab\n");
  EXPECT_EQ(ResolveModel("org/some.model-1"), main);
  Make(hub + "/refs/main", "../../..\n");
  EXPECT_EQ(ResolveModel("org/some.model-1"), Path(hub));
}

TEST_F(HubCacheTest, VariablesSayWhere) {
  const std::string in_home = Make("home/hub/models--a--b/snapshots/1/config.json");
  const std::string in_cache = Make("cache/models--a--b/snapshots/1/config.json");
  setenv("HF_HOME", Path("home").c_str(), 1);
  EXPECT_EQ(ResolveModel("a/b"), in_home);
  setenv("HF_HUB_CACHE", Path("cache").c_str(), 1);
  EXPECT_EQ(ResolveModel("a/b"), in_cache);
  for (const char* other : {"a", "a/b/c", "/a", "a/", "../b", "a/b c"}) {
    EXPECT_EQ(ResolveModel(other), other);
  }
}

TEST_F(HubCacheTest, TheOnlyGgufFileIsTheModel) {
  const std::string directory = Make("d/m-00001-of-00002.gguf", "");
  Make("d/m-00002-of-00002.gguf", "");
  EXPECT_EQ(ResolveModel(directory), directory + "/m-00001-of-00002.gguf");
  Make("d/other.gguf", "");
  EXPECT_EQ(ResolveModel(directory), directory);
  EXPECT_THAT(ErrorOf([&] { RequireModel(directory); }),
              HasSubstr("name one of its files: m-00001-of-00002.gguf, other.gguf"));
}

TEST_F(HubCacheTest, RefusalsSayWhatToDo) {
  const auto refusal = [](const std::string& model) {
    return ErrorOf([&] { RequireModel(model); });
  };
  EXPECT_THAT(refusal("org/name"),
              AllOf(HasSubstr(HubCache()), HasSubstr("`hf download org/name`")));
  EXPECT_THAT(ErrorOf([] { GetDocument("org/name", "tokenizer.json"); }),
              HasSubstr("`hf download org/name`"));
  EXPECT_THAT(refusal(Path("absent")), HasSubstr("no such model directory or GGUF file"));
  EXPECT_THAT(refusal(Path("absent.gguf")), HasSubstr("no such model directory or GGUF file"));
  const std::string directory = Make("p/pytorch_model.bin", "");
  EXPECT_THAT(refusal(directory + "/pytorch_model.bin"), HasSubstr("save_pretrained"));
  Make("p/config.json");
  EXPECT_THAT(refusal(directory), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("safetensors")));
  Make("p/model.safetensors");
  EXPECT_EQ(refusal(directory), "");
  EXPECT_THAT(refusal(directory + "/model.safetensors"), HasSubstr("name the directory"));
}

}  // namespace
}  // namespace nibble
