"""The paper's theory as an experiment: what it states, what is measured, and whether that is what runs."""

from fpp_sweep.reproduce.theory.finding import Finding
from fpp_sweep.reproduce.theory.table import theory

__all__ = ["Finding", "theory"]
