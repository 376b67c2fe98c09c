"""The engine beside the naive reference, in one run: adapt, pretrain, features, sweep.

`python -m benchmarks.adapt --help`, and so on; figures in RESULTS.md. Ratios are what can be compared between machines
and days. With `--quick` a benchmark is a test: it asserts that both sides give the same results, and never a time.
"""

from fpp_sweep.spec.process import set_thread_defaults

set_thread_defaults()  # before any benchmark loads torch: spinning threads would be measured too
