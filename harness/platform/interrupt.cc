#include "harness/platform/interrupt.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string_view>

namespace tokline {
namespace {

// They are lock-free, so a signal handler may set them.
std::atomic<bool> g_requested = false;
std::atomic<int> g_signal = 0;
std::atomic<int64_t> g_requested_ms = 0;  // when the flag was set, or 0
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Request(int signal_number) {
  // The terminal's Ctrl-C reaches a program and the script that runs it, which passes it on.
  constexpr int64_t kOneRequestMs = 500;
  // The time is stored first, so that a signal that another thread receives meanwhile finds it.
  int64_t first = 0;
  if (g_requested_ms.compare_exchange_strong(first, NowMs())) {
    g_signal = signal_number;
    g_requested = true;
    return;
  }
  if (NowMs() - first < kOneRequestMs) return;
  constexpr std::string_view kText = "\n[ended at once by a second interrupt]\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void CatchUnlessIgnored(int signal_number) {
  struct sigaction present {};
  ::sigaction(signal_number, nullptr, &present);
  if (present.sa_handler != SIG_IGN) std::signal(signal_number, Request);
}

}  // namespace

void CatchInterrupts() {
  CatchUnlessIgnored(SIGINT);
  CatchUnlessIgnored(SIGTERM);
  CatchUnlessIgnored(SIGHUP);
}

bool InterruptRequested() { return g_requested; }

int InterruptSignal() { return g_signal; }

void RearmInterrupts() {
  g_requested = false;
  g_signal = 0;
  g_requested_ms = 0;
  CatchInterrupts();
}

const std::atomic<bool>* InterruptFlag() { return &g_requested; }

}  // namespace tokline
