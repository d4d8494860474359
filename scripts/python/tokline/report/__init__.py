"""One self-contained HTML file about recorded runs: what matters in words, plots, every row, the machine."""
