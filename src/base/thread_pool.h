// SPDX-License-Identifier: Apache-2.0
// One fixed pool for the whole program. Any thread may run a task, so a task must write only what
// belongs to its number; then results do not depend on the number of threads. Waiting threads spin
// briefly, since a decode step hands out many small jobs, and then sleep, which frees a shared
// core.
#pragma once

#include <cstddef>
#include <functional>

namespace nibble {

// Threads used by ParallelFor, the caller's included. Set once at start-up; 0 = all cores this
// process may use.
void SetThreads(int threads);
int Threads();

// Calls task(i) once for every i in [0, count), on several threads. A call from inside a task runs
// inline. The first exception thrown by a task is rethrown here once no task runs any more; the
// others may or may not have run.
void ParallelFor(size_t count, const std::function<void(size_t)>& task);

}  // namespace nibble
