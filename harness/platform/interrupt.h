// Turns Ctrl-C, SIGTERM and SIGHUP into a request that the program answers once it has cleaned up.
#pragma once

#include <atomic>

namespace tokline {

// From this call on, the first SIGINT, SIGTERM or SIGHUP sets a flag. A second one, half a second
// later or more, ends the process at once, and says so on standard error. A signal that the process
// ignores stays ignored: nohup ignores SIGHUP, and a script's shell ignores SIGINT for programs
// that it runs in the background.
void CatchInterrupts();

bool InterruptRequested();
// The signal that set the flag, or 0 if none did.
int InterruptSignal();
// Clears the flag and catches the next signal, for a program that continues after an interrupt.
void RearmInterrupts();
// The flag itself, for code that polls it. It lives as long as the process.
const std::atomic<bool>* InterruptFlag();

// The exit status of an interrupted program: the one that shells use for SIGINT.
inline constexpr int kInterruptedExit = 130;

}  // namespace tokline
