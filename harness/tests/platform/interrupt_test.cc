// Tests which signals count as interrupts, in child processes.
#include "harness/platform/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace tokline {
namespace {

// Gives the signal a disposition, catches interrupts, and ends the process with the number of the
// signal that was recorded once `number` was raised.
[[noreturn]] void RaiseAndExit(int number, void (*disposition)(int), bool rearm) {
  std::signal(number, disposition);
  CatchInterrupts();
  if (rearm) RearmInterrupts();
  std::raise(number);
  std::_Exit(InterruptRequested() ? InterruptSignal() : 0);
}

TEST(InterruptTest, EachSignalIsRecordedUnlessItWasIgnored) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    for (const bool rearm : {false, true}) {
      EXPECT_EXIT(RaiseAndExit(number, SIG_DFL, rearm), ::testing::ExitedWithCode(number), "");
      EXPECT_EXIT(RaiseAndExit(number, SIG_IGN, rearm), ::testing::ExitedWithCode(0), "");
    }
  }
}

}  // namespace
}  // namespace tokline
