"""Thread defaults for all tests, doctests of the package included: set before any test module imports torch."""

from fpp_sweep.spec.process import set_thread_defaults

set_thread_defaults()
