"""The paper's theory as an experiment: what it states, what is measured, and whether that is what runs."""

from fpp_sweep.reproduce.theory.finding import Finding
from fpp_sweep.reproduce.theory.setting import Setting, Sizes
from fpp_sweep.reproduce.theory.table import findings_of, nearby_features, real_entropy, theory, uniform_entropy

__all__ = ["Finding", "Setting", "Sizes", "findings_of", "nearby_features", "real_entropy", "theory", "uniform_entropy"]
