// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose plan and planes do not belong together.
#include "models/checkpoint/packed_checkpoint.h"

#include <cmath>
#include <limits>

#include "base/file.h"
#include "models/checkpoint/packed_checkpoint_testing.h"
#include "models/import/open_network.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

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
      if (linear.input.tail_width > 0) {
        EXPECT_EQ(Decode(linear.tail).data, Decode(View(*weights_[i++])).data);
      }
      const LinearPlan& plan = plan_.at(layer, role);
      EXPECT_EQ(linear.input.tail_width, plan.tail.columns);
      EXPECT_EQ(linear.input.tail_activations, plan.tail.activations);
      EXPECT_EQ(linear.input.scales, plan.input_scales ? scales_ : std::vector<float>());
      EXPECT_EQ(linear.input.gather, plan.gather ? gather_ : std::vector<int32_t>());
      EXPECT_EQ(linear.input.activations, plan_.at(layer, role).activations);
      EXPECT_EQ(linear.input.transform, plan_.at(layer, role).input_transform);
    }
  }
  EXPECT_EQ(ToF32(net.embedding.values).data, *floats_[0]);
  EXPECT_EQ(ToF32(net.head.weights.values).data, *floats_[1]);
  EXPECT_EQ(net.caches[0].v, plan_.v);
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
  ExpectEditRefused("/linears/layers.0.up/tail/weights/bits", 7);
  ExpectEditRefused("/linears/layers.0.up/tail/weights/clip", 0.5);
  ExpectEditRefused("/linears/layers.0.o/weights/second_level", false);
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
  expect("layers.1.o.scales", [](Tensors& t) { Find(t, "layers.1.o.scales").shape = {16, 1}; });
  expect("layers.1.o.places", [](Tensors& t) { Find(t, "layers.1.o.places").shape = {64, 7}; });
  const std::vector<uint8_t> places(64 * 8, 0b0100'0100 ^ 0b0001);  // 1 1, then 0 1
  expect("layers.1.o.places: 1 1 0 1", [&](Tensors& t) {
    Find(t, "layers.1.o.places").data = reinterpret_cast<const std::byte*>(places.data());
  });
  expect("layers.1.q.zeros", [](Tensors& t) { Find(t, "layers.1.q.zeros").shape = {2, 64}; });
  for (const char* plane : {"codes", "scales", "zeros"}) {
    const std::string name = fmt::format("layers.1.up.{}", plane);
    expect(name.c_str(), [&](Tensors& t) {
      std::erase_if(t, [&](const NamedTensor& tensor) { return tensor.name == name; });
    });
  }
  expect("layers.1.surprise", [&](Tensors& t) { t.push_back({"layers.1.surprise", Floats({2})}); });
  expect("layers.1.q", [](Tensors& t) { Find(t, "layers.1.q.bias").shape = {3}; });
  expect("layers.1.o.bias is missing", [](Tensors& t) {
    std::erase_if(t, [](const NamedTensor& tensor) { return tensor.name == "layers.1.o.bias"; });
  });
  expect("layers.1.key_center is missing", [](Tensors& t) {
    std::erase_if(t,
                  [](const NamedTensor& tensor) { return tensor.name == "layers.1.key_center"; });
  });
  expect("layers.1.key_center", [](Tensors& t) { Find(t, "layers.1.key_center").shape = {16}; });
  expect("layers.1.up.bias is not part", [&](Tensors& t) {
    t.push_back({"layers.1.up.bias", Floats({160})});
  });
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    Write();
    Patch(LayerShardName(1), "layers.1.o.scales", 17, scale);
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("layers.1.o.scales")));
  }
}

TEST_F(PackedCheckpointTest, WhatIsNotFiniteIsRefusedByName) {
  plan_.norms_folded = false;
  const auto write = [&] {
    Write([&](Tensors& t) {
      for (const char* norm : {"layers.1.attention_norm", "layers.1.mlp_norm"}) {
        t.push_back({norm, Floats({64})});
      }
    });
    std::string first = "m/" + LayerShardName(0);
    const SafetensorsFile file(Path(first));
    Tensors tensors;
    for (const auto& [name, view] : file.tensors()) tensors.push_back({name, view});
    for (const char* norm : {"layers.0.attention_norm", "layers.0.mlp_norm"}) {
      tensors.push_back({norm, Floats({64})});
    }
    WriteShard(Path(first), tensors, Digest());
    WriteShard(Path("m/" + std::string(kRestShardName)),
               {{"embedding.weight", Floats({512, 64})},
                {"head.weight", Floats({512, 64})},
                {"final_norm", Floats({64})}},
               Digest());
    WriteIndex(Path("m"), 2);
  };
  write();
  EXPECT_EQ(OpenError(), "");
  for (const std::string name : {"embedding.weight", "final_norm", "layers.1.q.bias",
                                 "layers.1.attention_norm", "layers.1.mlp_norm"}) {
    for (const float value : {NAN, -INFINITY}) {
      write();
      Patch(name[0] == 'l' ? LayerShardName(1) : kRestShardName, name, 63, value);
      EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(name + ": 1 of ")));
    }
  }
}

TEST_F(PackedCheckpointTest, TheWriterRefusesWhatNoLoaderTakes) {
  for (const float value : {NAN, INFINITY}) {
    const Tensor scales = Floats({32, 1});
    (*floats_.back())[31] = value;
    EXPECT_THAT(ErrorOf([&] { Write([&](Tensors& t) { Find(t, "layers.1.o.scales") = scales; }); }),
                AllOf(HasSubstr(LayerShardName(1)), HasSubstr("layers.1.o.scales"),
                      HasSubstr("1 of 32 values")));
    EXPECT_FALSE(fs::exists(Path("m/" + LayerShardName(1))));
  }
}

TEST_F(PackedCheckpointTest, InputScalesThatDoNotFitAreRefused) {
  const std::string name = "layers.1.up.input_scales";
  for (const float bad : {0.0f, NAN, INFINITY}) {
    Write();
    Patch(LayerShardName(1), name, 63, bad);
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(name)));
  }
  Write();
  Patch(LayerShardName(1), name, 5, scales_[5] + 1);
  EXPECT_THAT(OpenError(), HasSubstr("layers.1.gate.input_scales and " + name + " differ"));
  const auto expect = [&](const std::string& named, const std::function<void(Tensors&)>& edit) {
    Write(edit);
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(named)));
  };
  expect(name + " is F32 [63]", [&](Tensors& t) { Find(t, name).shape = {63}; });
  expect(name + " is I32", [&](Tensors& t) { Find(t, name).dtype = DType::kI32; });
  expect(name + " is missing", [&](Tensors& t) {
    std::erase_if(t, [&](const NamedTensor& tensor) { return tensor.name == name; });
  });
  expect("layers.1.q.input_scales is not part of the plan", [&](Tensors& t) {
    t.push_back({"layers.1.q.input_scales", Floats({64})});
  });
}

TEST_F(PackedCheckpointTest, GathersThatAreNoPermutationAreRefused) {
  const auto expect = [&](const char* named, const std::vector<int32_t>& gather) {
    Write([&](Tensors& t) {
      Tensor& view = Find(t, "layers.1.up.gather");
      view.shape = {static_cast<int64_t>(gather.size())};
      view.data = reinterpret_cast<const std::byte*>(gather.data());
    });
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(named)));
  };
  for (const int32_t bad : {-1, 64, 2147483647, -2147483647 - 1, gather_[0]}) {
    std::vector<int32_t> gather = gather_;
    gather[5] = bad;
    expect("layers.1.up.gather: not a permutation", gather);
  }
  std::vector<int32_t> other = gather_;
  std::swap(other[0], other[1]);
  expect("layers.1.gate.gather and layers.1.up.gather differ", other);
  other.pop_back();
  expect("63 entries for an input of width 64", other);
  for (const char* plane : {"gather", "tail.codes", "tail.scales"}) {
    const std::string name = fmt::format("layers.1.up.{}", plane);
    Write([&](Tensors& t) {
      std::erase_if(t, [&](const auto& tensor) { return tensor.name == name; });
    });
    EXPECT_THAT(OpenError(), HasSubstr(name + " is missing"));
  }
  Write([](Tensors& t) { Find(t, "layers.1.gate.tail.weight").shape = {160, 31}; });
  EXPECT_THAT(OpenError(), HasSubstr("layers.1.gate.tail"));
  Write([](Tensors& t) { Find(t, "layers.1.up.gather").dtype = DType::kF32; });
  EXPECT_THAT(OpenError(), HasSubstr("layers.1.up.gather is F32, expected I32"));
}

TEST_F(PackedCheckpointTest, NormsThatAreNotFolded) {
  plan_.norms_folded = false;
  Write();
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("final_norm is missing")));
  const Tensor norm = Floats({64}), embedding = Floats({512, 64});
  WriteShard(Path("m/" + std::string(kRestShardName)),
             {{"embedding.weight", embedding}, {"head.weight", embedding}, {"final_norm", norm}},
             Digest());
  WriteIndex(Path("m"), 2);
  EXPECT_THAT(OpenError(), HasSubstr("layers.0.attention_norm is missing"));
}

TEST_F(PackedCheckpointTest, AShardIsWholeOrNothing) {
  const std::string path = Path("shard");
  EXPECT_FALSE(OpenWholeShard(path));
  WriteShard(path, {{"a", Floats({2, 3})}, {"b", Floats({2})}}, {{"errors", "0.25"}});
  ASSERT_TRUE(OpenWholeShard(path));
  const std::string bytes = ReadFile(path, 1 << 20);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    WriteFileAtomic(path, damaged);
    EXPECT_FALSE(OpenWholeShard(path)) << "bit " << bit;
  }
  for (const auto& [from, to] : {std::pair("[2,3]", "[3,2]"), {"\"F32\"", "\"I32\""}}) {
    std::string damaged = bytes;
    damaged.replace(damaged.find(from), std::strlen(from), to);
    WriteFileAtomic(path, damaged);
    EXPECT_FALSE(OpenWholeShard(path)) << to;
  }
}

TEST_F(PackedCheckpointTest, KnowsItsFilesByName) {
  for (const char* name : {"config.json", "manifest.json", "provenance.json", "tokenizer.json",
                           "model.safetensors.index.json", "layer-00000.safetensors",
                           "layer-123456.safetensors", "cpu-tiles.safetensors"}) {
    EXPECT_TRUE(IsCheckpointFile(name)) << name;
  }
  for (const char* name : {"", "thesis.txt", "model.safetensors", "config.json.bak", "Config.json",
                           "layer-00000.safetensors.bak", "layer-0.safetensors", "layer-00000",
                           "layer--0001.safetensors", "layer-000001.safetensors", "layer-x",
                           "factors.safetensors", "learning.safetensors", "rotation.safetensors"}) {
    EXPECT_FALSE(IsCheckpointFile(name)) << name;
  }
}

TEST_F(PackedCheckpointTest, IndexCountsTheBytesOfTensors) {
  Write();
  uint64_t bytes = 0;
  for (const std::string& shard :
       {std::string(kRestShardName), LayerShardName(0), LayerShardName(1)}) {
    const SafetensorsFile file(Path("m/" + shard));
    for (const auto& [name, view] : file.tensors()) bytes += view.bytes();
  }
  const Json index = ReadJsonFile(Path("m/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
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

}  // namespace
}  // namespace nibble
