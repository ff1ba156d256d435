// SPDX-License-Identifier: Apache-2.0
// A model on disk, ready to be taken over by a backend: every linear as a PackedLinear whose planes
// lie in mapped files. The same structure holds a Hugging Face checkpoint (weights of 16 bits,
// norms with weights) and a Nibble checkpoint (packed codes, norms usually folded away).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/kv_format.h"
#include "formats/packed_linear.h"
#include "io/safetensors.h"
#include "models/config.h"
#include "source/unread_keys.h"

namespace nibble {

struct LayerWeights {
  ByVector<Tensor> vectors;  // no data = folded into the linears
  ByRole<PackedLinear> linears;

  PackedLinear& operator[](Role role) { return linears[role]; }
  const PackedLinear& operator[](Role role) const { return linears[role]; }
};

struct Network {
  ModelConfig config;
  std::vector<KvSpec> caches;  // of each layer
  PackedWeights embedding;     // [vocab, hidden]
  Tensor positions;            // [context, hidden] or no data
  std::vector<LayerWeights> layers;
  Tensor final_norm;  // [hidden] or no data
  PackedLinear head;
  // A head that multiplies with the embedding's rotated table: what comes out of the last layer is
  // turned back first, so that the final norm finds its own channels; identity otherwise.
  InputSpec head_unrotation;
  // In place of head_unrotation a matrix [hidden, hidden], behind a norm without weights: it turns
  // back, multiplies with the norm's weights and turns forth; no rows: there is none.
  PackedLinear head_rotation;
  // The weights of ModelConfig::layer_input_size (engine/layer_inputs.h).
  PackedWeights layer_table;
  PackedLinear layer_projection;
  Tensor layer_input_norm;

  // Head and embedding are the same bytes.
  bool one_table() const {
    return head.weights.codes.data == embedding.codes.data &&
           head.weights.values.data == embedding.values.data;
  }

  std::string directory;
  Json config_json;     // config.json as it is, or with tied embeddings where there is no head
  bool packed = false;  // a Nibble checkpoint
  // The name of the codes that linears have in a checkpoint that is not Nibble's ("GPTQ"); empty:
  // floats.
  std::string stored_codes;
  std::unique_ptr<TensorStore> store;  // owns the mapped bytes
  // The tile plane in use (tile_plane.h), or why the one that is there is not used.
  std::unique_ptr<SafetensorsFile> tiles;
  std::string tiles_refused;
  UnreadKeys unread;  // of its documents; none that is refused
};

}  // namespace nibble
