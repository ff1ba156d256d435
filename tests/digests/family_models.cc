// SPDX-License-Identifier: Apache-2.0
// Writes the random models of all families (models/random_model_testing.h), with a tokenizer of
// 4096 tokens, into folders below a directory: family_models DIRECTORY TOKENIZER.
#include <fmt/format.h>

#include <filesystem>

#include "models/random_model_testing.h"

int main(int count, char** arguments) {
  namespace fs = std::filesystem;
  if (count != 3) {
    fmt::print(stderr, "usage: family_models DIRECTORY TOKENIZER\n");
    return 2;
  }
  for (const nibble::FamilyModel& model : nibble::FamilyModels()) {
    nibble::Json config = nibble::SmallConfig(model.changes);
    config["vocab_size"] = config["vocab_size_per_layer_input"] = 4096;
    const std::string made = nibble::RandomModel("digests-" + std::string(model.name), config);
    const fs::path to = fs::path(arguments[1]) / std::string(model.name);
    fs::create_directories(to);
    fs::copy(made, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::copy_file(arguments[2], to / "tokenizer.json", fs::copy_options::overwrite_existing);
    fs::remove_all(made);
  }
}
