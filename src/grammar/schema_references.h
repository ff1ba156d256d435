// SPDX-License-Identifier: Apache-2.0
// The keywords by which schemas name themselves and each other: $id, $anchor, $dynamicAnchor, $ref,
// $dynamicRef (JSON Schema core, 8.2 and 8.3).
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace nibble::grammar {

// Returns the document with each reference that leads to a place in it written as a JSON pointer
// from its root ("#/$defs/a"). Other references stay as they are, as do dynamic ones to a name that
// several schemas have.
Json WithPointers(const Json& document);

// The value that a pointer names in a document that WithPointers returned; nullptr if there is
// none.
const Json* Follow(const Json& document, std::string_view reference);

}  // namespace nibble::grammar
