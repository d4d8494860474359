// The commands of the tokline program. Each takes the arguments after its name and returns an exit
// code. It throws InvalidArgument for usage errors and other exceptions for failures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/platform/standard_streams.h"  // every command prints to standard output

namespace tokline {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

struct CommandLine {
  std::span<const std::string> args;  // those after the command's name
  int argc = 0;                       // argc and argv of the whole program, for its records
  char** argv = nullptr;
};

int GenerateCommand(const CommandLine& line);
int ChatCommand(const CommandLine& line);
int BenchCommand(const CommandLine& line);
int AblateCommand(const CommandLine& line);
int InspectCommand(const CommandLine& line);
int TokenizeCommand(const CommandLine& line);
int DivergenceCommand(const CommandLine& line);

// The text that "tokline COMMAND --help" prints below its first line.
std::string GenerateHelp();
std::string ChatHelp();
std::string BenchHelp();
std::string AblateHelp();
std::string InspectHelp();
std::string TokenizeHelp();
std::string DivergenceHelp();

// Runs the command that argv names. Errors become one line on standard error and the exit code
// kUsage or kFailure.
int RunProgram(int argc, char** argv);

}  // namespace tokline
