// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/rounded_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "formats/packed_weights_testing.h"
#include "io/atomic_file.h"
#include "io/io_testing.h"
#include "models/import/open_network.h"
#include "quantize/run/round_network.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class RoundedCacheTest : public TemporaryDirectoryTest {
 protected:
  void SetUp() override {
    TemporaryDirectoryTest::SetUp();
    setenv("XDG_CACHE_HOME", Path("cache").c_str(), 1);
    fs::copy(NIBBLE_SOURCE_DIR "/samples/tiny", Path("model"));
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    TemporaryDirectoryTest::TearDown();
  }

  KeptNetwork Load(const std::string& model = "model", int bits = 8) const {
    return RoundOrFind(OpenNetwork(Path(model)), LoadingRecipe(bits, false));
  }
  size_t Entries() const {
    const auto entries = fs::directory_iterator(Path("cache/nibble/rounded"));
    return static_cast<size_t>(std::distance(fs::begin(entries), fs::end(entries)));
  }
  void ExpectRoundedWeights(const Network& net) const {
    const Network rounded = RoundNetwork(OpenNetwork(Path("model")), LoadingRecipe(8, false));
    ExpectSamePlanes(net.embedding, rounded.embedding);
    ExpectSamePlanes(net.head.weights, rounded.head.weights);
    ASSERT_EQ(net.layers.size(), rounded.layers.size());
    for (size_t i = 0; i < net.layers.size(); ++i) {
      for (const auto& [role, linear] : net.layers[i].linears) {
        ExpectSamePlanes(linear.weights, rounded.layers[i][role].weights);
        EXPECT_EQ(linear.input.transform, rounded.layers[i][role].input.transform);
      }
    }
  }
  static void Damage(const fs::path& file) { std::ofstream(file) << "damaged"; }
};

TEST_F(RoundedCacheTest, TheNextStartFindsWhatWasRounded) {
  const KeptNetwork first = Load();
  EXPECT_FALSE(first.found);
  EXPECT_EQ(first.not_kept, "");
  const KeptNetwork next = Load();
  EXPECT_TRUE(next.found);
  EXPECT_EQ(next.path, first.path);
  ExpectRoundedWeights(next.network);
  EXPECT_FALSE(Load("model", 4).found) << "other bits";
  EXPECT_TRUE(Load().found) << "beside those of 4 bits";
  EXPECT_EQ(Entries(), 2u);
}

TEST_F(RoundedCacheTest, AnotherModelAtThePathIsRoundedAnew) {
  Load();
  const std::string weights = Path("model/model.safetensors");
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_FALSE(Load().found);
  EXPECT_TRUE(Load().found);
  Json config = ReadJsonFile(Path("model/config.json"));
  config["rms_norm_eps"] = 1e-4;
  WriteFileAtomic(Path("model/config.json"), config.dump());
  EXPECT_FALSE(Load().found) << "another config.json";
  EXPECT_EQ(Entries(), 1u) << "in place of the old one";
}

TEST_F(RoundedCacheTest, WhatIsDamagedIsMadeAnew) {
  const std::string entry = Load().path;
  for (const char* name :
       {"layer-00000.safetensors", "model.safetensors.index.json", "provenance.json"}) {
    Damage(fs::path(entry) / name);
    const KeptNetwork again = Load();
    EXPECT_FALSE(again.found) << name;
    EXPECT_EQ(again.not_kept, "") << name;
    ExpectRoundedWeights(again.network);
    EXPECT_TRUE(Load().found) << name;
  }
}

TEST_F(RoundedCacheTest, EntriesOfRemovedModelsGo) {
  fs::copy(Path("model"), Path("other"));
  Load("other");
  fs::remove_all(Path("other"));
  Load();
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(RoundedCacheTest, SaysWhyNothingIsKept) {
  const std::string path = Load().path;
  fs::remove_all(path);
  fs::create_directory(path + ".partial");
  {
    const DirectoryLock lock(path + ".partial");
    EXPECT_THAT(Load().not_kept, testing::HasSubstr("in use by another nibble process"));
  }
  std::ofstream(path + ".partial/letter") << "of somebody";
  EXPECT_THAT(Load().not_kept, testing::HasSubstr("letter"));
  EXPECT_TRUE(fs::exists(path + ".partial/letter"));
  fs::remove_all(Path("cache"));
  std::ofstream(Path("cache")) << "a file";
  const KeptNetwork result = Load();
  EXPECT_THAT(result.not_kept, testing::HasSubstr("cache"));
  ExpectRoundedWeights(result.network);
}

TEST_F(RoundedCacheTest, KeepsNothingWithoutAHome) {
  unsetenv("XDG_CACHE_HOME");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  unsetenv("HOME");
  const KeptNetwork result = Load();
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
  EXPECT_EQ(result.path, "");
  EXPECT_EQ(result.not_kept, "");
  ExpectRoundedWeights(result.network);
}

}  // namespace
}  // namespace nibble
