"""Benchmarks of speed, scale, faults and evidence; README.md lists them, RESULTS.md has their results."""

from fpp_sweep.spec.process import set_thread_defaults

set_thread_defaults()  # before any benchmark loads torch: spinning threads would be measured too
