"""The start of a driver: of a new sweep, or of one that is resumed, which may be asked another space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.html import write_page
from fpp_sweep.search.question import asked_space, drop_outdated_results
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.sweep_info import new_info, resumed_info, software_changes
from fpp_sweep.tracking.stores import absolute, check_address, uri_of_folder, uri_of_new_sweep

FIRST_RELOAD_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The space and the record that a driver starts with."""

    space: Space
    record: SweepRecord  # of a resumed sweep it is written once the inputs are checked
    before: SweepInfo | None  # record of a resumed sweep, as it was

    @property
    def tracking_uri(self) -> str:
        return self.record.info.tracking_uri

    def accept(self, info: SweepInfo) -> None:
        """Write the record with the inputs that were checked; from here on the sweep answers the space."""
        folder = self.record.folder
        if self.before is not None:
            drop_outdated_results(folder, self.before.space, self.space)
        self.record.info = info
        self.record.update()


def start_of(space: Space, options: Options, folder: SweepFolder, *, in_process: bool = False) -> Start:
    """Return the start of a sweep; raise InputError if the folder of a resumed one cannot answer the space."""
    if not options.resume:
        info = new_info(space, options, folder, _store_of(space, options, folder, None, in_process=in_process))
        return Start(space=space, record=SweepRecord(folder, info), before=None)
    stage("reading what is done")
    before = folder.info()
    space, answers = asked_space(folder, space, options.plugin_digests())
    uri = _store_of(space, options, folder, before, in_process=in_process)
    info = resumed_info(before, space, uri, options, answers)
    for line in software_changes(before, info):
        note(line)
    return Start(space=space, record=SweepRecord(folder, info), before=before)


def begin(start: Start) -> None:
    """Write the record of a new sweep, from which it can be resumed, and a page that stands until the first report.

    Then check the address of MLflow, if the sweep has one.
    """
    folder = start.record.folder
    if start.before is None:
        start.record.update()
    if start.tracking_uri:
        check_address(start.tracking_uri)
    page = folder.report / "sweep.html"
    if page.exists():
        return
    text = (
        f"Started at {datetime.now():%H:%M}. No report is written yet; this page loads itself again until one is. "
        f"If the sweep was killed, this command writes one: fpp-sweep show {folder.path.name} --page"
    )
    write_page(page, "waiting.html.j2", title=folder.path.name, text=text, reload_seconds=FIRST_RELOAD_SECONDS)


@contextmanager
def removing_refused(start: Start) -> Iterator[None]:
    """Remove what a new sweep has written if bad input ends it before its first trial."""
    try:
        yield
    except InputError:
        folder = start.record.folder
        if start.before is None and not folder.trial_files():
            _remove_new_folder(folder)
        raise


def _remove_new_folder(folder: SweepFolder) -> None:
    """Remove what the sweep has written; results of another sweep that the user has put there stay."""
    if not folder.tasks.exists():
        shutil.rmtree(folder.path, ignore_errors=True)
        return
    for path in (folder.info_file, folder.lock_file):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder.report, ignore_errors=True)


def _store_of(
    space: Space, options: Options, folder: SweepFolder, before: SweepInfo | None, *, in_process: bool
) -> str:
    """Return the MLflow store of a sweep; empty for one in this process that has and requests none."""
    requested = options.tracking_uri or space.work.tracking_uri
    if in_process and requested:
        return absolute(requested)
    if in_process and (before is None or not before.tracking_uri):
        return ""
    if before is None:
        return uri_of_new_sweep(requested)
    return uri_of_folder(folder, requested, flag="--tracking-uri")
