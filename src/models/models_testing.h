// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this folder: the small models of tests/data and edits of JSON files.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/json.h"
#include "io/atomic_file.h"
#include "io/io_testing.h"

namespace nibble {

inline const std::filesystem::path kArchitectures = NIBBLE_SOURCE_DIR "/tests/data/architectures";

inline void EditJson(const std::string& path, const std::function<void(Json&)>& edit) {
  Json json = ReadJsonFile(path);
  edit(json);
  WriteFileAtomic(path, json.dump());
}

}  // namespace nibble
