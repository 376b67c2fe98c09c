"""The paper's theory as an experiment: each statement, what was measured, and whether it describes what runs.

`reproduce --table theory` prints the findings; docs/theory.md explains them.
"""

from __future__ import annotations

from fpp_sweep.reproduce.theory.entropy import made_up_penalty_findings, model_penalty_findings, theorem_findings
from fpp_sweep.reproduce.theory.finding import Finding
from fpp_sweep.reproduce.theory.first_step import first_step_finding, penalty_step_finding
from fpp_sweep.reproduce.theory.identities import distillation_finding, householder_finding
from fpp_sweep.reproduce.theory.pretraining import pretraining_findings
from fpp_sweep.reproduce.theory.setting import Setting, Sizes

__all__ = ["Finding", "Setting", "Sizes", "findings_of"]


def findings_of(setting: Setting) -> list[Finding]:
    """Return all findings for a model, the classes and images of a dataset, and a trial's settings."""
    return [
        *theorem_findings(setting),
        *made_up_penalty_findings(setting),
        *model_penalty_findings(setting),
        householder_finding(setting),
        distillation_finding(setting),
        first_step_finding(setting),
        penalty_step_finding(setting, "ctpt"),
        penalty_step_finding(setting, "otpt"),
        *pretraining_findings(setting),
    ]
