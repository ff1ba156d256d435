// SPDX-License-Identifier: Apache-2.0
#include "base/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace nibble {
namespace {

volatile std::sig_atomic_t interrupted = 0;  // the signal that set the flag

void OnSignal(int signal) {
  if (interrupted != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // takes effect when this handler returns
  }
  interrupted = signal;
}

}  // namespace

void CatchInterrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // The program that started this one ignores the signal: nohup, or a shell for background jobs.
    if (std::signal(signal, OnSignal) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

bool Interrupted() {
  return interrupted != 0;
}

bool ForgetCtrlC() {
  if (interrupted != SIGINT) return false;
  interrupted = 0;
  return true;
}

}  // namespace nibble
