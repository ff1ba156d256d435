// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

// Defines std::string_view NAME(): the bytes of a file, which become part of the program. `path` is
// a string literal; the build lists the file among what the source depends on. In the global
// namespace, once in a program for each name.
#define NIBBLE_EMBED(name, path)                                                 \
  asm(".pushsection .rodata\n"                                                   \
      "nibble_" #name "_begin: .incbin \"" path                                  \
      "\"\n"                                                                     \
      "nibble_" #name                                                            \
      "_end: .byte 0\n"                                                          \
      ".popsection\n");                                                          \
  extern const char nibble_##name##_begin asm("nibble_" #name "_begin");         \
  extern const char nibble_##name##_end asm("nibble_" #name "_end");             \
  static std::string_view name() {                                               \
    return {&nibble_##name##_begin,                                              \
            static_cast<size_t>(&nibble_##name##_end - &nibble_##name##_begin)}; \
  }
