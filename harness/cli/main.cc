// The tokline program.
#include "harness/cli/commands.h"

int main(int argc, char** argv) { return tokline::RunProgram(argc, argv); }
