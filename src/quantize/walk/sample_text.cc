// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/sample_text.h"

// clang-format off
asm(".section .rodata\n"
    "nibble_sample_text_begin:\n"
    ".incbin \"" NIBBLE_SAMPLE_TEXT "\"\n"
    "nibble_sample_text_end:\n"
    ".previous\n");
// clang-format on

extern const char sample_text_begin asm("nibble_sample_text_begin");
extern const char sample_text_end asm("nibble_sample_text_end");

namespace nibble {

std::string_view SampleCalibrationText() {
  return {&sample_text_begin, static_cast<size_t>(&sample_text_end - &sample_text_begin)};
}

}  // namespace nibble
