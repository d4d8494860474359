#include "harness/core/interrupt.h"

#include <csignal>

namespace tokline {
namespace {

// Lock-free, so a signal handler may set it.
std::atomic<bool> g_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void Request(int signal_number) {
  g_requested = true;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

void CatchInterrupts() {
  std::signal(SIGINT, Request);
  std::signal(SIGTERM, Request);
}

bool InterruptRequested() { return g_requested; }

const std::atomic<bool>* InterruptFlag() { return &g_requested; }

}  // namespace tokline
