"""Measures other libraries on the shapes of the suite's own rows; see README.md."""
