// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "http/server.h"

namespace nibble::http {

// A socket that listens; its owner closes it.
struct Listener {
  int descriptor = -1, family = 0;
  uint16_t port = 0;  // of TCP
};

// Listens as the options say; throws Error. A Unix socket is for its owner only; one that is left
// from a process that has ended is replaced.
Listener Listen(const Options& options);

}  // namespace nibble::http
