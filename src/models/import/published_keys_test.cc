// SPDX-License-Identifier: Apache-2.0
// What becomes of the keys of published models: tests/data/published_keys has those of their
// config.json and GGUF headers (long lists shortened), and which of them are told, or what of the
// model is refused.
#include <gmock/gmock.h>

#include <set>

#include "base/file.h"
#include "io/gguf_testing.h"
#include "io/io_testing.h"
#include "models/families/family.h"
#include "models/import/config_keys.h"
#include "models/import/open_network.h"
#include "models/models_testing.h"
#include "models/network.h"
#include "source/gguf_source.h"
#include "source/model_source.h"

namespace nibble {
namespace {

using testing::HasSubstr;

const std::filesystem::path kData = NIBBLE_SOURCE_DIR "/tests/data/published_keys";

class PublishedKeys : public TemporaryDirectoryTest {
 protected:
  // `first_tensor`: what is missed of a model that is not refused, as there are no weights.
  void Expect(const Json& entry, const std::string& model, const UnreadKeys& found,
              const std::string& first_tensor) {
    const auto name = entry["name"].get<std::string>();
    const std::string error = ErrorOf([&] { OpenNetwork(model); });
    EXPECT_EQ(error.find('\n'), error.npos) << name;
    EXPECT_THAT(error, HasSubstr(entry.value("refused", first_tensor))) << name;
    if (entry.contains("refused")) return;  // nothing else is told
    EXPECT_EQ(Json(found.answers), entry.value("answers", Json::array())) << name;
    EXPECT_EQ(Json(found.unknown), entry.value("unknown", Json::array())) << name;
  }
};

TEST_F(PublishedKeys, OfConfigsAreReadOrTold) {
  std::set<std::string> families;
  SafetensorsWriter(Path("model.safetensors"), {}).Finish();
  const Json entries = ReadJsonFile(kData / "configs.json");
  for (const Json& entry : entries) {
    const Json& config = entry["config"];
    WriteFileAtomic(Path("config.json"), config.dump());
    families.insert(TextConfig(config)["model_type"].get<std::string>());
    UnreadKeys found;
    if (ErrorOf([&] { ParseConfig(config, "c"); }).empty()) FindUnreadConfigKeys(config, found);
    Expect(entry, root_.string(), found, "no tensor \"");
  }
  EXPECT_GE(entries.size(), 30u);
  EXPECT_GE(families.size(), 20u);
}

// Numbers without a fraction are integers of 32 bits, lists have the type of their first item.
void AddKey(const std::string& key, const Json& value, GgufBuilder& b) {
  if (value.is_boolean()) return b.Bool(key, value);
  if (value.is_string()) return b.String(key, value.get<std::string>());
  if (value.is_number_integer()) {
    return b.Key(key, 5, GgufBuilder::Raw(value.get<int32_t>()));
  }
  if (value.is_number()) return b.Real(key, value);
  if (value[0].is_string()) return b.Strings(key, value.get<std::vector<std::string>>());
  if (value[0].is_boolean()) return b.Numbers(key, 7, value.get<std::vector<uint8_t>>());
  if (value[0].is_number_integer()) return b.Numbers(key, 5, value.get<std::vector<int32_t>>());
  b.Numbers(key, 6, value.get<std::vector<float>>());
}

TEST_F(PublishedKeys, OfGgufHeadersAreReadOrTold) {
  std::set<std::string> architectures;
  const Json entries = ReadJsonFile(kData / "headers.json");
  for (const Json& entry : entries) {
    GgufBuilder b;
    for (const auto& [key, value] : entry["keys"].items()) AddKey(key, value, b);
    architectures.insert(entry["keys"]["general.architecture"].get<std::string>());
    b.Tensor("token_embd.weight", {4, 8}, 0, std::string(4 * 8 * 4, '\0'));
    const Json tensors = entry.value("tensors", Json::object());
    for (const auto& [tensor, width] : tensors.items()) {
      std::string ones;
      for (size_t i = 0; i < width; ++i) ones += GgufBuilder::Raw(1.0f);
      b.Tensor(tensor, {width}, 0, ones);
    }
    b.Write(Path("m.gguf"));
    UnreadKeys found;
    FindUnreadDocumentKeys(Path("m.gguf"), found);
    Expect(entry, Path("m.gguf"), found, "token_embd.weight has shape");
    if (!entry.contains("refused")) {
      for (const char* document :
           {"generation_config.json", "tokenizer_config.json", "tokenizer.json"}) {
        EXPECT_EQ(ErrorOf([&] { GetDocument(Path("m.gguf"), document); }), "") << entry["name"];
      }
    }
  }
  EXPECT_GE(entries.size(), 30u);
  EXPECT_GE(architectures.size(), 10u);
}

}  // namespace
}  // namespace nibble
