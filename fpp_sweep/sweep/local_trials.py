"""Trials of a run in this process: what they have in common, and whether a record is that of a requested trial."""

from __future__ import annotations

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.records.requested import require_config
from fpp_sweep.search.job import TrialContext
from fpp_sweep.space.space import Space
from fpp_sweep.space.validation import require
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import set_aside
from fpp_sweep.spec.messages import note
from fpp_sweep.sweep.api import Options


def open_context(space: Space, folder: SweepFolder, options: Options) -> TrialContext:
    """Return what all trials of a run in this process have in common."""
    from fpp_sweep.sweep.local_worker import open_locally  # loads torch, after all names were checked

    plan, executor = open_locally(space, folder, options.plugins)
    return TrialContext(
        folder=folder,
        executor=executor,
        plan=plan,
        objectives=space.objectives,
        constraints=space.constraints,
        search_split=space.search.split,
        plugins=options.plugins,
    )


def has_requested_trial(folder: SweepFolder, wanted: TrialRecord) -> bool:
    """Return whether a trial has a record with the wanted number and config; another is renamed with a note."""
    if not folder.has_trial_else_set_aside(wanted.name):
        return False
    record = folder.trial(wanted.name)
    try:
        require(record.kind == wanted.kind and record.number == wanted.number, "is not its number's", "number")
        require_config(record, TrialConfig().replace(wanted.config))
    except InputError as error:
        file = folder.trial_file(wanted.name)
        note(f"{file}: {error}; kept as {set_aside(file)}, and the trial runs again")
        return False
    return True
