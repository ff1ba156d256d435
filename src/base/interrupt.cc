// SPDX-License-Identifier: Apache-2.0
#include "base/interrupt.h"

#include <csignal>

namespace nibble {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void OnSignal(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void CatchInterrupts() {
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
}

bool Interrupted() {
  return interrupted != 0;
}

}  // namespace nibble
