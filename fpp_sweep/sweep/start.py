"""The start of a driver: of a new sweep, or of one that is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import Command, SweepInfo
from fpp_sweep.report.document import Document, Text
from fpp_sweep.report.html import write_html
from fpp_sweep.space.space import Space
from fpp_sweep.spec.messages import note
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.resume import load_for_resume, load_stopped_info, merge_resume_request, require_same
from fpp_sweep.sweep.steering import require_above_spent
from fpp_sweep.sweep.sweep_info import new_info, resumed_info, software_changes
from fpp_sweep.tracking.stores import absolute, check_address, uri_of_folder, uri_of_new_sweep

FIRST_RELOAD_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The space, the record and the MLflow store that a driver starts with."""

    space: Space  # with all requests since the sweep began
    info: SweepInfo
    tracking_uri: str
    info_before: SweepInfo | None  # record of a resumed sweep, as it was
    sent: Sequence[Command] = ()  # commands of the resume


def begin(folder: SweepFolder, start: Start) -> None:
    """Write the record, from which the sweep can be resumed, and a page that stands until the first report.

    Then check the address of MLflow, if the sweep has one.
    """
    folder.write_info(start.info)
    if start.tracking_uri:
        check_address(start.tracking_uri)
    page = folder.report / "sweep.html"
    if page.exists():
        return
    text = (
        f"Started at {datetime.now():%H:%M}. No report is written yet; this page loads itself again until one is. "
        f"If the sweep was killed, this command writes one: fpp-sweep show {folder.path.name} --page"
    )
    document = Document(title=folder.path.name, sections=(), introduction=(Text(text),))
    write_html(page, document, reload_seconds=FIRST_RELOAD_SECONDS)


def ray_start(space: Space, options: Options, folder: SweepFolder) -> Start:
    """Return the start of a sweep on Ray, new or resumed."""
    if options.resume:
        return _resumed_start(space, options, folder)
    uri = uri_of_new_sweep(options.tracking_uri or space.work.tracking_uri)
    return Start(space=space, info=new_info(space, options, folder, uri), tracking_uri=uri, info_before=None)


def _resumed_start(space: Space, options: Options, folder: SweepFolder) -> Start:
    before = load_for_resume(space, options, folder)
    uri = uri_of_folder(folder, options.tracking_uri or space.work.tracking_uri, flag="--tracking-uri")
    space, request = merge_resume_request(space, before, folder)
    require_above_spent(folder, request.budget, before.spent)
    info = _record_of_resume(before, space, uri, options)
    return Start(space=space, info=info, tracking_uri=uri, info_before=before, sent=request.send(folder))


def local_start(space: Space, options: Options, folder: SweepFolder) -> Start:
    """Return the start of a sweep in this process. It has no study, and no MLflow store unless one is requested."""
    if not options.resume:
        uri = _requested_uri(space, options)
        return Start(space=space, info=new_info(space, options, folder, uri), tracking_uri=uri, info_before=None)
    before = load_stopped_info(folder)
    require_same(before, space, options, folder)
    uri = _requested_uri(space, options)
    if not uri and before.tracking_uri:
        uri = uri_of_folder(folder, None, flag="--tracking-uri")
    info = _record_of_resume(before, space, uri, options)
    return Start(space=space, info=info, tracking_uri=uri, info_before=before)


def _record_of_resume(before: SweepInfo, space: Space, tracking_uri: str, options: Options) -> SweepInfo:
    """Return the record of a resumed sweep, and print a note if the software was changed since."""
    info = resumed_info(before, space, tracking_uri, options)
    for line in software_changes(before, info):
        note(line)
    return info


def _requested_uri(space: Space, options: Options) -> str:
    """Return the MLflow store that is requested; empty if `sync` shall write to one later."""
    uri = options.tracking_uri or space.work.tracking_uri
    if uri is None:
        return ""
    return absolute(uri)
