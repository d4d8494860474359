"""One self-contained HTML file about recorded runs: what matters in words, plots, every row, the machine."""

import os

os.environ["MPLBACKEND"] = "agg"  # one of a notebook may not exist here, and fails the import of matplotlib
