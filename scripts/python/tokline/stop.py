"""Why a command ends early, below all modules that raise it."""


class Stop(Exception):
    """Ends a command with a line. The exit code None stands for the one that the command fails with."""
    exit_code = None

    def __init__(self, words="", exit_code=None):
        super().__init__(words)
        self.exit_code = exit_code or self.exit_code
