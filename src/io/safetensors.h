// SPDX-License-Identifier: Apache-2.0
// Tensors on disk in the safetensors format (github.com/huggingface/safetensors, "Format"):
//   u64 N little-endian | N bytes of JSON, space padded | data
//   JSON: {"__metadata__": {string: string},
//          NAME: {"dtype", "shape", "data_offsets": [begin, end]}}
// Offsets count from the start of the data; the tensors fill it without holes or overlap, not
// aligned.
//
// Everything is checked at opening, before anything is allocated by a number of the file; a bad
// file throws nibble::Error naming file, tensor and offsets. Views live as long as their file or
// store. Reading is safe from any number of threads; a writer belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io/mmap_file.h"
#include "tensor/tensor.h"

namespace nibble {

// Tensors of a file and of a model: 128 layers with 512 experts have 197,000. Their names, shapes
// and places take 35 MB of a header, which may be parsed in four times its size; the format's own
// limit is twice as high.
inline constexpr size_t kMaxTensors = 1 << 18;
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 50'000'000;

struct SafetensorsContents {
  std::map<std::string, Tensor> tensors;  // views into the parsed bytes
  std::map<std::string, std::string> metadata;
};

// The bytes of a whole file; `where` names it in errors.
SafetensorsContents ParseSafetensors(std::span<const std::byte> file, const std::string& where);

// weight_map of a model.safetensors.index.json, tensor name -> shard file name (as written,
// unchecked).
std::map<std::string, std::string> ParseSafetensorsIndex(std::string_view text,
                                                         const std::string& where);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path)
      : file_(path), contents_(ParseSafetensors(file_.bytes(), path)) {}

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, Tensor>& tensors() const { return contents_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return contents_.metadata; }
  void DropPages() const { file_.DropPages(); }

 private:
  MappedFile file_;
  SafetensorsContents contents_;
};

// The tensors of a model directory: model.safetensors alone or, absent that, the shards listed in
// model.safetensors.index.json. A shard is a plain file name in the directory. Symlinks may point
// only below the directory or, in the Hugging Face cache (models--*/snapshots/REVISION), to its
// models--*/blobs; so a downloaded model cannot make Nibble read other files of the machine.
class TensorStore {
 public:
  explicit TensorStore(const std::string& directory);
  // Tensors of other files that lie in `mapped`; `name` names them in messages.
  TensorStore(std::string name, std::vector<std::shared_ptr<const MappedFile>> mapped,
              std::map<std::string, Tensor> tensors)
      : directory_(std::move(name)), mapped_(std::move(mapped)), tensors_(std::move(tensors)) {}

  const Tensor* Find(const std::string& name) const;  // nullptr if absent
  const Tensor& Get(const std::string& name) const;   // throws if absent
  std::vector<std::string> names() const;             // sorted
  uint64_t total_bytes() const;                       // of all tensors
  const std::string& directory() const { return directory_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::vector<std::string> paths() const;  // of all files, safetensors or not
  void DropPages() const;                  // of all files (MappedFile)

 private:
  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;
  std::map<std::string, Tensor> tensors_;
};

// The path of a plain file name in a model directory under the same rule; throws.
std::string PathInside(const std::string& directory, const std::string& name);

// Writes one file, which appears at `path` with Finish() or not at all. The same input gives the
// same bytes. Data starts at a multiple of 64 bytes: a tensor is aligned to a cache line if the
// sizes of those before it are multiples of 64.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
  };

  SafetensorsWriter(const std::string& path, std::span<const Entry> entries,
                    const std::map<std::string, std::string>& metadata = {});

  void Append(std::span<const std::byte> tensor);  // the next entry, whole
  void Finish();

 private:
  AtomicFile file_;
  std::vector<uint64_t> sizes_;  // bytes of each entry
  size_t next_ = 0;
};

}  // namespace nibble
