"""runner.py <name>_test: runs a test file of this folder. Exits 0 passed, 1 failed or no test found, 77 all skipped.

A skipped test is printed as GoogleTest prints it, so that scripts/test counts both in one way.
"""

import importlib
import sys
import unittest


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.stream.writeln(f"[  SKIPPED ] {test.id()}: {reason} (0 ms)")


def main() -> int:
    tests = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(sys.argv[1]))
    if tests.countTestCases() == 0:
        print(f"{sys.argv[1]} has no test")
        return 1
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result).run(tests)
    if not result.wasSuccessful():
        return 1
    return 0 if result.passed else 77


if __name__ == "__main__":
    sys.exit(main())
