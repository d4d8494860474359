// Ctrl-C and SIGTERM as a request that a program answers when it has cleaned up.
#pragma once

#include <atomic>

namespace tokline {

// From here on SIGINT and SIGTERM set a flag. A second one ends the process at once.
void CatchInterrupts();

bool InterruptRequested();
// The signal that set the flag; 0: none.
int InterruptSignal();
// Puts the flag down and catches the next one, for a program that goes on.
void RearmInterrupts();
// The flag itself, for work that polls it; it lives as long as the program.
const std::atomic<bool>* InterruptFlag();

// What a program that was interrupted returns, as shells do for SIGINT.
inline constexpr int kInterruptedExit = 130;

}  // namespace tokline
