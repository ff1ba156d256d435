// SPDX-License-Identifier: Apache-2.0
// NIBBLE_TARGET_CLONES, an attribute: the function is compiled for several instruction sets, and
// which one runs is decided while the program is loaded. Not under the thread sanitizer: GCC 12
// instruments that decision, which then runs before the sanitizer does.
#pragma once

#ifdef __SANITIZE_THREAD__
#define NIBBLE_TARGET_CLONES
#else
#define NIBBLE_TARGET_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
