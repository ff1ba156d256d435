// SPDX-License-Identifier: Apache-2.0
// OpenBLAS as Nibble uses it: every call on the thread that makes it, from all threads of the pool.
#pragma once

namespace nibble {

// Before BLAS is used by Threads() threads. OpenBLAS keeps a buffer for each call that runs at the
// same time and tries for ever where it gets none; so they are all made here, or an error is
// thrown.
void PrepareBlas();

}  // namespace nibble
