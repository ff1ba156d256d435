// SPDX-License-Identifier: Apache-2.0
// What nothing reads of a config.json, by tables of what its family reads.
#pragma once

#include "base/json.h"
#include "source/unread_keys.h"

namespace nibble {

// Of a config.json that ParseConfig takes.
void FindUnreadConfigKeys(const Json& config, UnreadKeys& found);
// What a family reads besides what all do.
std::string_view KeysReadBy(std::string_view model_type);
// Of any.
std::string_view KeysReadByAll();

}  // namespace nibble
