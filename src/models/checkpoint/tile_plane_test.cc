// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/tile_plane.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "formats/tile_order.h"
#include "models/checkpoint/packed_checkpoint_testing.h"
#include "models/import/open_network.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class TilePlaneTest : public PackedCheckpointTest {
 protected:
  void SetUp() override {
    PackedCheckpointTest::SetUp();
    Write();
    WriteTiles(OpenNetwork(Path("m")));
  }

  std::string Plane() const { return Path("m/" + std::string(kTilesName)); }

  // The network still opens, from its canonical planes alone.
  void ExpectRefused(const char* named) const {
    const Network net = OpenNetwork(Path("m"));
    EXPECT_THAT(net.tiles_refused, AllOf(HasSubstr(Path("m")), HasSubstr(named)));
    EXPECT_EQ(net.tiles, nullptr);
    for (const LayerWeights& layer : net.layers) {
      for (Role role : kLayerRoles) EXPECT_EQ(layer[role].weights.tiles.data, nullptr);
    }
  }

  // Changes the header; `padding` spaces follow it. The data stay.
  void EditHeader(const std::function<void(Json&)>& edit, size_t padding = 0) const {
    const std::string file = ReadFile(Plane(), 1 << 30);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    Json header = ParseJson(file.substr(8, length), "header");
    edit(header);
    std::string text = header.dump();
    text.resize((text.size() + 8 + 63) / 64 * 64 - 8 + padding, ' ');
    length = text.size();
    WriteFileAtomic(Plane(), std::string(reinterpret_cast<const char*>(&length), 8) + text +
                                 file.substr(file.size() - DataBytes(header)));
  }
  static size_t DataBytes(const Json& header) {
    size_t bytes = 0;
    for (const auto& [name, tensor] : header.items()) {
      if (name != "__metadata__") bytes = std::max(bytes, tensor["data_offsets"][1].get<size_t>());
    }
    return bytes;
  }
};

TEST_F(TilePlaneTest, IsMappedInPlace) {
  const Network net = OpenNetwork(Path("m"));
  EXPECT_EQ(net.tiles_refused, "");
  ASSERT_NE(net.tiles, nullptr);
  EXPECT_EQ(net.tiles->tensors().size(), 14u + 2);  // up has a tail of codes, gate one of 16 bits
  for (const LayerWeights& layer : net.layers) {
    for (Role role : kLayerRoles) {
      for (const PackedWeights* w : {&layer[role].weights, &layer[role].tail}) {
        if (!w->format.quantized()) continue;
        std::vector<uint8_t> expected(static_cast<size_t>(TileOrder(*w).bytes()));
        PackTiles(*w, expected.data());
        EXPECT_TRUE(std::ranges::equal(w->tiles.as<uint8_t>(), expected));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(w->tiles.data) % 64, 0u);
      }
    }
  }
  EXPECT_EQ(net.head.weights.tiles.data, nullptr) << "not multiplied in integers";
  EXPECT_EQ(VerifyManifest(Path("m")), 6);
  EXPECT_EQ(ReadManifest(Path("m")).at(kTilesName).bytes, fs::file_size(Plane()));
}

TEST_F(TilePlaneTest, OfOtherWeightsIsNotUsed) {
  fs::rename(Plane(), Path("plane"));
  Write();  // the same plan, other numbers
  fs::rename(Path("plane"), Plane());
  ExpectRefused("made from other weights");
  WriteTiles(OpenNetwork(Path("m")));
  EXPECT_NE(OpenNetwork(Path("m")).tiles, nullptr);
}

TEST_F(TilePlaneTest, ThatDoesNotFitIsNotUsed) {
  const std::string good = ReadFile(Plane(), 1 << 30);
  const auto expect = [&](const char* named, const std::function<void(Json&)>& edit,
                          size_t padding = 0) {
    SCOPED_TRACE(named);
    WriteFileAtomic(Plane(), good);
    EditHeader(edit, padding);
    ExpectRefused(named);
  };
  expect("another tile order", [](Json& h) { h["__metadata__"]["tile_order"] = "cpu-2"; });
  expect("another tile order", [](Json& h) { h.erase("__metadata__"); });
  expect("made from other weights", [](Json& h) { h["__metadata__"].erase("source_sha256"); });
  const auto rename = [](const char* from, const char* to) {
    return [from, to](Json& h) {
      const Json tensor = h[from];
      h.erase(from);
      h[to] = tensor;
    };
  };
  expect("layers.1.q.tiles is missing", rename("layers.1.q.tiles", "layers.1.q.codes"));
  expect("layers.1.q.tiles is I8", [](Json& h) { h["layers.1.q.tiles"]["dtype"] = "I8"; });
  expect("layers.0.q.tiles is U8 [8, 4, 64]", [](Json& h) {
    h["layers.0.q.tiles"]["shape"] = {8, 4, 64};
  });
  expect(
      "multiple of 64 bytes", [](Json&) {}, 16);
  expect("unknown tensors", [](Json& h) {
    h["more"] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  for (const size_t bytes : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
    WriteFileAtomic(Plane(), good.substr(0, bytes));
    ExpectRefused(kTilesName);
  }
  fs::rename(Plane(), Path("outside"));
  fs::create_symlink(Path("outside"), Plane());
  ExpectRefused("leads outside");
}

TEST_F(TilePlaneTest, NeedsTheManifestOfItsWeights) {
  EditJson(Path("m/manifest.json"), [](Json& m) { m["files"].erase(LayerShardName(0)); });
  ExpectRefused("no entry for layer-00000");
  fs::remove(Path("m/manifest.json"));
  ExpectRefused("manifest.json");
}

TEST_F(TilePlaneTest, DamageIsFoundByTheManifest) {
  std::string bytes = ReadFile(Plane(), 1 << 30);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFileAtomic(Plane(), bytes);
  EXPECT_NE(OpenNetwork(Path("m")).tiles, nullptr);
  EXPECT_THAT(ErrorOf([&] { VerifyManifest(Path("m")); }),
              AllOf(HasSubstr(kTilesName), HasSubstr("differs")));
}

TEST_F(TilePlaneTest, IsNotMadeOfDamagedWeights) {
  const std::string shard = Path("m/" + LayerShardName(1));
  std::string bytes = ReadFile(shard, 1 << 30);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFileAtomic(shard, bytes);
  fs::remove(Plane());
  EXPECT_THAT(ErrorOf([&] { WriteTiles(OpenNetwork(Path("m"))); }),
              AllOf(HasSubstr(shard), HasSubstr("differs")));
  EXPECT_FALSE(fs::exists(Plane()));
}

TEST_F(TilePlaneTest, NeedsIntegerLinears) {
  for (auto& [name, linear] : plan_.linears) linear.activations = linear.tail.activations = {};
  Write();
  EXPECT_THAT(ErrorOf([&] { WriteTiles(OpenNetwork(Path("m"))); }),
              HasSubstr("nothing to reorder"));
}

}  // namespace
}  // namespace nibble
