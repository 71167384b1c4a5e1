"""Benchmarks: real stores, real processes, figures as ratios within one run. `make bench` writes RESULTS.md."""
