#include "harness/platform/interrupt.h"

#include <csignal>

namespace tokline {
namespace {

// They are lock-free, so a signal handler may set them.
std::atomic<bool> g_requested = false;
std::atomic<int> g_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void Request(int signal_number) {
  g_signal = signal_number;
  g_requested = true;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

void CatchInterrupts() {
  std::signal(SIGINT, Request);
  std::signal(SIGTERM, Request);
}

bool InterruptRequested() { return g_requested; }

int InterruptSignal() { return g_signal; }

void RearmInterrupts() {
  g_requested = false;
  g_signal = 0;
  CatchInterrupts();
}

const std::atomic<bool>* InterruptFlag() { return &g_requested; }

}  // namespace tokline
