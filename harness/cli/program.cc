// The entry point of the tokline program: the table of its commands, its help, and its error
// reports.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>

#include "harness/cli/commands.h"
#include "harness/engine/rank_server.h"
#include "harness/measure/build_info.h"
#include "harness/platform/flags.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const CommandLine&);
  std::string (*help)();
};

constexpr Command kCommands[] = {
    {"generate", "continue a prompt", GenerateCommand, GenerateHelp},
    {"chat", "hold a conversation, with chunks of context that are reused", ChatCommand, ChatHelp},
    {"bench", "measure tokens per second", BenchCommand, BenchHelp},
    {"ablate", "measure what each custom or fused op is worth", AblateCommand, AblateHelp},
    {"inspect", "show what a model is and how much memory a run takes", InspectCommand,
     InspectHelp},
    {"tokenize", "show the token ids of a text or of a chat's first turn", TokenizeCommand,
     TokenizeHelp},
    {"divergence", "measure what reusing chunks at other positions changes", DivergenceCommand,
     DivergenceHelp},
};

bool AsksForHelp(std::string_view arg) { return arg == "--help" || arg == "-h"; }

std::string Help() {
  std::string help =
      "Decodes language models on the CPU or on CUDA.\n\nUsage: tokline COMMAND ...\n";
  for (const Command& command : kCommands) {
    std::string name(command.name);
    name.resize(12, ' ');
    help += StrCat("  ", name, command.summary, "\n");
  }
  return help +
         "\n  tokline COMMAND --help  lists the flags of a command\n"
         "  tokline --version\n\n"
         "Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted.\n";
}

std::string Version() {
  const BuildInfo& build = GetBuildInfo();
  return StrCat("tokline ", TOKLINE_VERSION, " (commit ", build.commit,
                build.dirty == "true" ? " with changes" : "", ", ", build.compiler, ", CUDA ",
                build.cuda_compiler, ")\n");
}

int Dispatch(int argc, char** argv) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const std::string_view first = args.empty() ? "" : std::string_view(args.front());
  if (AsksForHelp(first) || first == "help") {
    Print(Help());
    return kSuccess;
  }
  if (first == "--version") {
    Print(Version());
    return kSuccess;
  }
  const auto* const command = std::ranges::find(kCommands, first, &Command::name);
  Require(command != std::end(kCommands),
          args.empty() ? "no command" : StrCat("unknown command ", Quoted(first)),
          Suggestion(first, kCommands, &Command::name), "; the commands are ",
          Joined(kCommands, &Command::name), ", and --help");
  if (std::any_of(args.begin() + 1, args.end(), AsksForHelp)) {
    Print(StrCat("Usage: tokline ", command->name, " [FLAGS]: ", command->summary, "\n",
                 command->help()));
    return kSuccess;
  }
  return command->run({.args = std::span(args).subspan(1), .argc = argc, .argv = argv});
}

void PrintError(std::string message) {
  std::ranges::replace(message, '\n', ' ');
  std::fprintf(stderr, "tokline: %s\n", Printable(message).c_str());
}

int Report(const std::string& message, int code) {
  if (ProcessGroup* const processes = ProcessGroup::Get()) processes->Abandon(message, code);
  PrintError(message);
  return code;
}

// The text in which the processes of mpirun must agree.
std::string ProgramText(int argc, char** argv) {
  std::string text = Version();
  for (int i = 1; i < argc; ++i) text += StrCat(argv[i], "\n");
  return text;
}

// Runs the command on rank 0; the other processes serve as its other ranks.
int RunAmongProcesses(ProcessGroup* processes, int argc, char** argv) {
  if (processes == nullptr) return Dispatch(argc, argv);
  int code = kSuccess;
  if (processes->Rank() == 0) {
    processes->RequireAlike();
    code = Dispatch(argc, argv);
  } else {
    ServeRank(*processes);
  }
  processes->Leave();
  return code;
}

}  // namespace

int RunProgram(int argc, char** argv) {
  std::unique_ptr<ProcessGroup> processes;  // outlives what ends it
  try {
    PrepareStandardStreams();
    processes = ProcessGroup::Join(ProgramText(argc, argv), PrintError);
    return RunAmongProcesses(processes.get(), argc, argv);
  } catch (const InvalidArgument& error) {
    return Report(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return Report("host memory does not suffice", kFailure);
  } catch (const std::exception& error) {
    return Report(error.what(), kFailure);
  }
}

}  // namespace tokline
