"""The sweep that `doctor` checks, or the machine alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fpp_sweep.space.space import Space
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import splits_of_space
from fpp_sweep.sweep.request import space_to_tune
from fpp_sweep.sweep.worker_pool import gpus_of_a_worker
from fpp_sweep.sweep.worker_spec import worker_spec
from fpp_sweep.tracking.stores import uri_of_new_sweep


@dataclass(frozen=True, slots=True)
class NamedDatasets:
    """Datasets and groups by name, and where their files are."""

    names: Sequence[str]
    data_root: str | None
    dataset_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The sweep that is checked, or the machine alone."""

    worker: WorkerSpec
    options: Options
    space: Space | None = None

    @property
    def datasets(self) -> tuple[str, ...]:
        if self.space is None:
            return ()
        return self.space.work.datasets or ("custom",)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the sweep reads; the first one is searched."""
        if self.space is None:
            return ()
        return tuple(splits_of_space(self.space))

    @property
    def named_datasets(self) -> NamedDatasets | None:
        if self.space is None:
            return None
        work = self.space.work
        return NamedDatasets(work.datasets, work.data_root, work.dataset_file)

    @property
    def tracking_uri(self) -> str | None:
        """The MLflow store of the sweep; for the machine alone, the one that is named, or None."""
        named = self.options.tracking_uri
        if self.space is None:
            return named
        return uri_of_new_sweep(named or self.space.work.tracking_uri)


def target_of(path: Path | None, overrides: Sequence[str], options: Options) -> Target:
    """Return the sweep of a space file; without a file, the machine alone."""
    if path is None:
        return Target(worker=WorkerSpec(model="tiny", folder=os.getcwd()), options=options)
    space = space_to_tune(path, overrides)
    device = "auto" if gpus_of_a_worker(space.work, gpus_of_session=1.0) else "cpu"
    worker = replace(worker_spec(space, gpus=0.0), device=device, plugins=options.plugins)
    return Target(worker=worker, options=options, space=space)
