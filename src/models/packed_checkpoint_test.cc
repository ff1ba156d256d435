// SPDX-License-Identifier: Apache-2.0
// The plan as JSON, and checkpoints whose plan and planes do not belong together.
#include "models/packed_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "formats/tile_order.h"
#include "models/manifest.h"
#include "models/models_testing.h"
#include "models/tile_plane.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

Json SourceConfig() {
  return ReadJsonFile((kArchitectures / "mistral_sliding/config.json").string());
}

ModelConfig TestConfig() {
  return ParseConfig(SourceConfig(), "c");
}

// Different in every respect that a plan can have, so that a lost field shows.
Plan TestPlan(const ModelConfig& config) {
  Plan plan;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : kLayerRoles) {
      plan.linears[LinearName(layer, role)] = {
          .weights = {.bits = 4, .symmetric = false, .group = 32, .clip = 0},
          .activations = {.bits = 5, .symmetric = role != Role::kDown, .group = 32, .clip = 0.875}};
    }
    plan.linears[LinearName(layer, Role::kDown)].input_transform =
        FullHadamard(config.intermediate_size);
    plan.linears[LinearName(layer, Role::kO)].weights = {.bits = 3, .clip = 0.5};
  }
  plan.linears["head"] = {};
  plan.k = {.bits = 4, .symmetric = false, .clip = 0.9375};
  plan.v = {.bits = 3, .symmetric = true, .group = 8, .clip = 1};
  plan.kv_rotation = FullHadamard(config.head_dim);
  plan.norms_folded = true;
  plan.provenance = {{"recipe", "test"}, {"seed", 7}};
  return plan;
}

TEST(PlanJson, RoundTripLosesNothing) {
  const ModelConfig config = TestConfig();
  const Plan plan = TestPlan(config);
  const Plan back = PlanFromJson(ParseJson(ToJson(plan).dump(), "text"), config, "text");
  EXPECT_EQ(ToJson(back), ToJson(plan));
  EXPECT_EQ(PlanDigest(back), PlanDigest(plan));
  EXPECT_EQ(back.provenance, plan.provenance);
  for (Role role : kLayerRoles) {
    const LinearPlan &a = back.at(1, role), &b = plan.at(1, role);
    EXPECT_EQ(a.weights, b.weights);
    EXPECT_EQ(a.activations, b.activations);
    EXPECT_EQ(a.input_transform, b.input_transform);
  }
  const KvSpec kv = PlannedKv(config, back);
  EXPECT_EQ(kv.k, plan.k);
  EXPECT_EQ(kv.v, plan.v);
  EXPECT_EQ(kv.rotation, plan.kv_rotation);
  EXPECT_EQ(kv.kv_heads, 2);
  EXPECT_EQ(kv.head_dim, 16);
}

TEST(PlanJson, ForeignValuesAreRefused) {
  struct Case {
    const char* pointer;  // null value: the field is removed
    Json value;
    const char* named;
  };
  const Case cases[] = {
      {"/quant_method", "awq", "\"awq\""},
      {"/format_version", 2, "format version 2, this build reads 1"},
      {"/format_version", "1", "format_version"},
      {"/surprise", 1, "surprise"},
      {"/norms_folded", Json(), "norms_folded"},
      {"/norms_folded", 1, "norms_folded"},
      {"/provenance", Json(), "provenance"},
      {"/cache/surprise", 1, "surprise"},
      {"/cache/page_tokens", 32, "pages of 64 tokens"},
      {"/cache/k/bits", 9, "bits 9"},
      {"/cache/k/clip", 0, "clip"},
      {"/cache/k/group", 32, "group 32 does not divide head_dim 16"},
      {"/cache/v/group", -8, "group -8"},
      {"/cache/rotation", ToJson(FullHadamard(32)), "width 32, heads of 16"},
      {"/linears/layers.0.q/surprise", 1, "surprise"},
      {"/linears/layers.0.q/weights/surprise", 1, "surprise"},
      {"/linears/layers.0.q/weights/bits", 1, "bits 1"},
      {"/linears/layers.0.q/weights/bits", 9, "bits 9"},
      {"/linears/layers.0.q/weights/bits", 4.5, "bits"},
      {"/linears/layers.0.q/weights/symmetric", 0, "symmetric"},
      {"/linears/layers.0.q/weights/group", 16, "group 16 must be a multiple of 32"},
      {"/linears/layers.0.q/weights/group", 96, "group 96"},
      {"/linears/layers.0.q/weights/group", -32, "group -32"},
      {"/linears/layers.0.q/weights/group", INT64_MAX, "group"},
      {"/linears/layers.0.q/weights/clip", 1.5, "clip 1.5"},
      {"/linears/layers.0.q/weights/clip", -0.1, "clip -0.1"},
      {"/linears/layers.0.q/activations/clip", 0, "clip above 0"},
      {"/linears/layers.0.q/input_transform", ToJson(FullHadamard(128)), "width 128"},
      {"/linears/layers.1.k/activations/bits", 8, "layers.1.q and layers.1.k"},
      {"/linears/layers.1.up/input_transform", ToJson(FullHadamard(64)),
       "layers.1.gate and layers.1.up"},
      {"/linears/layers.0.down/input_transform", ToJson(FullHadamard(64)), "width 160"},
      {"/linears/layers.1.up", Json(), "layers.1.up"},
      {"/linears/head", Json(), "head"},
      {"/linears/layers.2.q", ToJson(TestPlan(TestConfig()))["linears"]["layers.1.q"],
       "16 linears"},
  };
  const ModelConfig config = TestConfig();
  const Json good = ToJson(TestPlan(config));
  for (const Case& c : cases) {
    Json bad = good;
    bad[Json::json_pointer(c.pointer)] = c.value;
    EXPECT_THAT(ErrorOf([&] { PlanFromJson(bad, config, "dir/config.json"); }),
                AllOf(HasSubstr("dir/config.json"), HasSubstr(c.named)))
        << c.pointer << " = " << c.value;
  }
}

TEST(PlanJson, GroupsOfWeightsAndActivationsMustNest) {
  ModelConfig config = TestConfig();
  config.intermediate_size = 192;
  Plan plan = TestPlan(config);
  LinearPlan& down = plan.linears["layers.0.down"];
  down.weights.group = 64;
  down.activations.group = 96;
  EXPECT_THAT(ErrorOf([&] { PlanFromJson(ToJson(plan), config, "c"); }),
              AllOf(HasSubstr("layers.0.down"), HasSubstr("do not divide each other")));
  down.activations.group = 192;
  EXPECT_EQ(PlanFromJson(ToJson(plan), config, "c").at(0, Role::kDown).activations.group, 192);
}

TEST(PlanDigestTest, ChangesWithEveryFieldButProvenance) {
  const ModelConfig config = TestConfig();
  const Plan plan = TestPlan(config);
  std::set<std::string> digests = {PlanDigest(plan)};
  size_t edits = 1;
  const auto expect_new = [&](const std::function<void(Plan&)>& edit) {
    Plan edited = plan;
    edit(edited);
    digests.insert(PlanDigest(edited));
    EXPECT_EQ(digests.size(), ++edits);
  };
  const auto expect_format = [&](const std::function<FormatSpec&(Plan&)>& format) {
    expect_new([&](Plan& p) { format(p).bits = 7; });
    expect_new([&](Plan& p) { format(p).symmetric ^= true; });
    expect_new([&](Plan& p) { format(p).group += 64; });
    expect_new([&](Plan& p) { format(p).clip = 0.75; });
  };
  for (const auto& [linear, unused] : plan.linears) {
    const std::string name = linear;
    expect_format([&](Plan& p) -> FormatSpec& { return p.linears[name].weights; });
    expect_format([&](Plan& p) -> FormatSpec& { return p.linears[name].activations; });
    expect_new([&](Plan& p) { p.linears[name].input_transform = FullHadamard(32); });
    expect_new([&](Plan& p) { p.linears[name].input_transform.outer = 2; });
  }
  expect_format([](Plan& p) -> FormatSpec& { return p.k; });
  expect_format([](Plan& p) -> FormatSpec& { return p.v; });
  expect_new([](Plan& p) { p.kv_rotation = {}; });
  expect_new([](Plan& p) { p.norms_folded = false; });
  Plan elsewhere = plan;
  elsewhere.provenance = {{"recipe", "other"}, {"seed", 8}};
  EXPECT_EQ(PlanDigest(elsewhere), PlanDigest(plan));
}

// A checkpoint of random planes, written with the writer's own parts.
class PackedCheckpointTest : public TemporaryDirectoryTest {
 protected:
  using Tensors = std::vector<NamedTensor>;

  // `edit` changes the tensors of layer 1 before they are written.
  void Write(const std::function<void(Tensors&)>& edit = [](Tensors&) {}) {
    fs::remove_all(root_ / "m");
    fs::create_directories(root_ / "m");
    WriteShard(Path("m/" + std::string(kRestShardName)),
               {{"embedding", Floats({512, 64})}, {"head.weight", Floats({512, 64})}}, Digest());
    for (int64_t layer = 0; layer < 2; ++layer) {
      Tensors tensors;
      for (Role role : kLayerRoles) {
        const PackedLinear linear = {.weights = RandomWeights(layer, role)};
        for (auto& t : LinearTensors(LinearName(layer, role), linear)) tensors.push_back(t);
      }
      if (layer == 1) edit(tensors);
      WriteShard(Path("m/" + LayerShardName(layer)), tensors, Digest());
    }
    Json json = SourceConfig();
    json["quantization_config"] = ToJson(plan_);
    WriteFileAtomic(Path("m/config.json"), json.dump());
    WriteIndex(Path("m"), 2);
    WriteManifest(Path("m"), DigestFiles(Path("m")));
  }

  std::map<std::string, std::string> Digest() const {
    return {{kPlanDigestKey, PlanDigest(plan_)}};
  }

  TensorView Floats(std::vector<int64_t> shape) {
    TensorView view = {DType::kF32, std::move(shape), nullptr};
    auto& values = floats_.emplace_back(std::make_unique<std::vector<float>>());
    for (int64_t i = 0; i < view.elements(); ++i) {
      values->push_back(static_cast<float>(rng_.Normal()));
    }
    view.data = reinterpret_cast<const std::byte*>(values->data());
    return view;
  }

  PackedWeights RandomWeights(int64_t layer, Role role) {
    auto& w = *weights_.emplace_back(std::make_unique<QuantizedWeights>());
    w.format = plan_.at(layer, role).weights;
    w.rows = config_.outputs(role);
    w.cols = config_.inputs(role);
    const int64_t groups = w.rows * w.format.groups(w.cols);
    w.codes.resize(static_cast<size_t>(w.rows * PackedBytes(w.cols, w.format.bits)));
    for (uint8_t& byte : w.codes) byte = static_cast<uint8_t>(rng_.Next());
    for (int64_t g = 0; g < groups; ++g) {
      const uint16_t scale = F16FromF32(static_cast<float>(0.01 + rng_.Uniform()));
      w.scales.push_back(F32FromF16(scale));
      if (w.format.group != 0) w.scales_f16.push_back(scale);
      if (!w.format.symmetric) w.zeros.push_back(static_cast<int8_t>(rng_.Below(16)) - 8);
    }
    return View(w);
  }

  std::string OpenError() const {
    return ErrorOf([&] { OpenNetwork(Path("m")); });
  }

  // The plan as an attacker or a helpful editor would leave it.
  void ExpectEditRefused(const char* pointer, const Json& value) {
    Write();
    EditJson(Path("m/config.json"),
             [&](Json& c) { c["quantization_config"][Json::json_pointer(pointer)] = value; });
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("another plan"))) << pointer;
  }

  static TensorView& Find(Tensors& tensors, const std::string& name) {
    for (NamedTensor& t : tensors) {
      if (t.name == name) return t.view;
    }
    throw std::out_of_range(name);
  }

  const ModelConfig config_ = TestConfig();
  Plan plan_ = TestPlan(config_);
  Rng rng_{1};
  std::vector<std::unique_ptr<QuantizedWeights>> weights_;
  std::vector<std::unique_ptr<std::vector<float>>> floats_;
};

TEST_F(PackedCheckpointTest, OpensAsWritten) {
  Write();
  const Network net = OpenNetwork(Path("m"));
  EXPECT_TRUE(net.packed);
  EXPECT_EQ(net.final_norm.data, nullptr) << "the plan says folded";
  size_t i = 0;
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (Role role : kLayerRoles) {
      const PackedLinear& linear = net.layers[static_cast<size_t>(layer)][role];
      EXPECT_EQ(Decode(linear.weights).data, Decode(View(*weights_[i++])).data);
      EXPECT_EQ(linear.input.activation, plan_.at(layer, role).activations);
      EXPECT_EQ(linear.input.transform, plan_.at(layer, role).input_transform);
    }
  }
  EXPECT_EQ(ToF32(net.embedding).data, *floats_[0]);
  EXPECT_EQ(ToF32(net.head.weights.values).data, *floats_[1]);
  EXPECT_EQ(net.kv.v, plan_.v);
}

TEST_F(PackedCheckpointTest, AnEditedPlanIsRefused) {
  ExpectEditRefused("/linears/layers.1.down/input_transform", ToJson(TransformSpec{}));
  ExpectEditRefused("/linears/layers.0.o/input_transform", ToJson(FullHadamard(64)));
  TransformSpec altered = plan_.at(0, Role::kDown).input_transform;
  altered.factors = FullHadamard(32).factors;
  altered.outer = 5;
  ExpectEditRefused("/linears/layers.0.down/input_transform", ToJson(altered));
  ExpectEditRefused("/linears/layers.0.q/weights/bits", 3);
  ExpectEditRefused("/linears/layers.0.o/activations/bits", 8);
  ExpectEditRefused("/linears/layers.0.o/activations/clip", 0.5);
  ExpectEditRefused("/cache/k/bits", 8);
  ExpectEditRefused("/cache/rotation", ToJson(TransformSpec{}));
  ExpectEditRefused("/norms_folded", false);
  Write();
  EditJson(Path("m/config.json"), [](Json& c) {
    c["quantization_config"]["provenance"] = {{"note", "renamed"}};
  });
  EXPECT_NO_THROW(OpenNetwork(Path("m")));
}

TEST_F(PackedCheckpointTest, AShardOfAnotherPlanIsRefused) {
  Write();
  WriteShard(Path("m/" + LayerShardName(1)), {{"x", Floats({2})}}, {});
  WriteIndex(Path("m"), 2);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(LayerShardName(1)), HasSubstr("another plan")));
}

TEST_F(PackedCheckpointTest, PlanesThatDoNotFitAreRefused) {
  const auto expect = [&](const char* named, const std::function<void(Tensors&)>& edit) {
    Write(edit);
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(named)));
  };
  expect("layers.1.q.codes", [](Tensors& t) { Find(t, "layers.1.q.codes").shape = {64, 31}; });
  expect("layers.1.q.codes", [](Tensors& t) { Find(t, "layers.1.q.codes").dtype = DType::kI8; });
  expect("layers.1.o.scales", [](Tensors& t) { Find(t, "layers.1.o.scales").shape = {32, 1}; });
  expect("layers.1.q.zeros", [](Tensors& t) { Find(t, "layers.1.q.zeros").shape = {2, 64}; });
  for (const char* plane : {"codes", "scales", "zeros"}) {
    const std::string name = fmt::format("layers.1.up.{}", plane);
    expect(name.c_str(), [&](Tensors& t) {
      std::erase_if(t, [&](const NamedTensor& tensor) { return tensor.name == name; });
    });
  }
  expect("layers.1.surprise", [&](Tensors& t) { t.push_back({"layers.1.surprise", Floats({2})}); });
  expect("layers.1.q", [&](Tensors& t) { t.push_back({"layers.1.q.bias", Floats({3})}); });
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    const TensorView bad = Floats({64, 1});
    (*floats_.back())[17] = scale;
    expect("layers.1.o.scales", [&](Tensors& t) { Find(t, "layers.1.o.scales") = bad; });
  }
}

TEST_F(PackedCheckpointTest, NormsThatAreNotFolded) {
  plan_.norms_folded = false;
  Write();
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("final_norm is missing")));
  const TensorView norm = Floats({64}), embedding = Floats({512, 64});
  WriteShard(Path("m/" + std::string(kRestShardName)),
             {{"embedding", embedding}, {"head.weight", embedding}, {"final_norm", norm}},
             Digest());
  WriteIndex(Path("m"), 2);
  EXPECT_THAT(OpenError(), HasSubstr("layers.0.attention_norm is missing"));
}

TEST_F(PackedCheckpointTest, ManifestFindsEveryFlippedByte) {
  Write();
  EXPECT_EQ(VerifyManifest(Path("m")), 5);  // config, index, three shards
  for (const std::string& name : {std::string("config.json"), LayerShardName(1)}) {
    std::string bytes = ReadFile(Path("m/" + name), 1 << 30);
    const size_t at = rng_.Below(bytes.size());
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    WriteFileAtomic(Path("m/" + name), bytes);
    EXPECT_THAT(ErrorOf([&] { VerifyManifest(Path("m")); }),
                AllOf(HasSubstr("m/" + name), HasSubstr("differs")));
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    WriteFileAtomic(Path("m/" + name), bytes);
    EXPECT_EQ(VerifyManifest(Path("m")), 5);
  }
  fs::rename(Path("m/" + LayerShardName(0)), Path("m/aside"));
  EXPECT_THAT(ErrorOf([&] { VerifyManifest(Path("m")); }),
              AllOf(HasSubstr(LayerShardName(0)), HasSubstr("missing")));
  fs::rename(Path("m/aside"), Path("m/" + LayerShardName(0)));
  const Json entry = {{"bytes", 1}, {"sha256", ""}};
  EditJson(Path("m/manifest.json"), [&](Json& m) { m["files"]["../secret"] = entry; });
  EXPECT_THAT(ErrorOf([&] { VerifyManifest(Path("m")); }),
              AllOf(HasSubstr("m/manifest.json"), HasSubstr("\"../secret\" is not a file name")));
  fs::remove(Path("m/manifest.json"));
  EXPECT_THAT(ErrorOf([&] { VerifyManifest(Path("m")); }), HasSubstr("manifest.json"));
}

// --- the tile plane -----------------------------------------------------------------------------

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
  EXPECT_EQ(net.tiles->tensors().size(), 14u);
  for (const LayerWeights& layer : net.layers) {
    for (Role role : kLayerRoles) {
      const PackedWeights& w = layer[role].weights;
      std::vector<uint8_t> expected(static_cast<size_t>(TileOrder(w).bytes()));
      PackTiles(w, expected.data());
      EXPECT_TRUE(std::ranges::equal(w.tiles.as<uint8_t>(), expected));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(w.tiles.data) % 64, 0u);
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
  for (auto& [name, linear] : plan_.linears) linear.activations = {};
  Write();
  EXPECT_THAT(ErrorOf([&] { WriteTiles(OpenNetwork(Path("m"))); }),
              HasSubstr("nothing to reorder"));
}

}  // namespace
}  // namespace nibble
