"""Delivery of a sweep to MLflow on request, from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import note, printable
from fpp_sweep.tracking import check_store, recorded, ship, to_look


def deliver(sweep: Path, tracking_uri: str | None) -> Iterator[str]:
    """Bring MLflow up to date with a sweep's folder; yield what was delivered, and how to see it.

    Without a tracking URI the sweep's own store is used, if this user has used that store before.
    """
    folder = SweepFolder.open(sweep)
    uri = tracking_uri or recorded(folder.info().tracking_uri)
    check_store(uri)
    delivered = ship(folder, uri)
    name = printable(folder.path.name)
    yield f"{name}: {delivered.records} records brought up to date, {delivered.created} of them new"
    if delivered.restored:
        yield f"restored from MLflow's deleted runs: {printable(', '.join(delivered.restored))}"
    if delivered.left_out:
        note(f"{len(delivered.left_out)} links lead out of the folder and are left out: {delivered.left_out[0]}")
    first, *others = to_look(folder, uri)
    yield f"see them: {first}"
    for line in others:
        yield f"          {line}"
