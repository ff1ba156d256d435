// SPDX-License-Identifier: Apache-2.0
// What schemas name themselves and each other by: $id, $anchor, $dynamicAnchor, $ref, $dynamicRef
// (JSON Schema core, 8.2 and 8.3).
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace nibble::grammar {

// The document with each reference that leads to a place in it as a JSON pointer from its root
// ("#/$defs/a"). Others stay as they are, as do dynamic ones to a name that several schemas have.
Json WithPointers(const Json& document);

// What a pointer names in a document that WithPointers returned; nullptr if nothing.
const Json* Follow(const Json& document, std::string_view reference);

}  // namespace nibble::grammar
