"""Calibrated test-time prompt tuning of CLIP, as trials that can be searched.

In a notebook (docs/library.md):

    from fpp_sweep import load_space, run_sweep, Sweep

    sweep = run_sweep(load_space("search_spaces/perturb.yaml", ["search.trials=8"]))  # on Ray
    sweep = Sweep.open("sweeps/perturb-20261120-185232")
    sweep.front(), sweep.best("knee"), sweep.table()

In a plugin file (docs/plugins.md):

    from fpp_sweep import method, metric, penalty, sampler

Importing the package is fast: each name below is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fpp_sweep.spec.version import VERSION as __version__

if TYPE_CHECKING:
    from fpp_sweep.space.reading import load_space as load_space
    from fpp_sweep.space.space import Space as Space
    from fpp_sweep.spec import catalogue
    from fpp_sweep.spec.config import TrialConfig as TrialConfig
    from fpp_sweep.spec.config import preset as preset
    from fpp_sweep.spec.errors import InputError as InputError
    from fpp_sweep.spec.plugins import load_plugins as load_plugins
    from fpp_sweep.sweep.api import Options as Options
    from fpp_sweep.sweep.api import Sweep as Sweep
    from fpp_sweep.sweep.local_run import run_locally as run_locally
    from fpp_sweep.sweep.start import run_sweep as run_sweep

    method, metric = catalogue.register_method, catalogue.register_metric
    penalty, sampler = catalogue.register_penalty, catalogue.register_sampler


MODULES = {  # where each public name is defined, with its name there if that is longer
    "InputError": "spec.errors",
    "Options": "sweep.api",
    "Space": "space.space",
    "Sweep": "sweep.api",
    "TrialConfig": "spec.config",
    "load_plugins": "spec.plugins",
    "load_space": "space.reading",
    "method": "spec.catalogue:register_method",
    "metric": "spec.catalogue:register_metric",
    "penalty": "spec.catalogue:register_penalty",
    "preset": "spec.config",
    "run_locally": "sweep.local_run",
    "run_sweep": "sweep.start",
    "sampler": "spec.catalogue:register_sampler",
}
__all__ = ["__version__", *MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in MODULES:
        raise AttributeError(f"module 'fpp_sweep' has no attribute {name!r}")
    module, _, attribute = MODULES[name].partition(":")
    return getattr(import_module(f"fpp_sweep.{module}"), attribute or name)


def __dir__() -> list[str]:
    """Return the public names, which a shell or notebook offers to complete."""
    return sorted(__all__)
