// SPDX-License-Identifier: Apache-2.0
// manifest.json: size and SHA-256 of every other file of a checkpoint. It shows damage, not
// authorship.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace nibble {

inline constexpr const char* kManifestName = "manifest.json";

struct FileDigest {
  uint64_t bytes = 0;
  std::string sha256;  // lower-case hexadecimal
};
using Manifest = std::map<std::string, FileDigest>;  // by plain file name

Manifest ReadManifest(const std::string& directory);
void WriteManifest(const std::string& directory, const Manifest& manifest);

FileDigest DigestFile(const std::string& path);
Manifest DigestFiles(const std::string& directory);  // all but manifest.json

// Compares a file, or every file, with the manifest; throws naming the first that differs.
void VerifyFile(const std::string& directory, const Manifest& manifest, const std::string& name);
int64_t VerifyManifest(const std::string& directory);  // returns the number of files

}  // namespace nibble
