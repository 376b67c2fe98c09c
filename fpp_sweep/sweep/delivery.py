"""Delivery of a sweep to MLflow on request, from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import note, plural, printable
from fpp_sweep.tracking import absolute, check_store, mlflow_links, sync_folder, trusted_uri
from fpp_sweep.tracking.folder_sync import SyncResult
from fpp_sweep.tracking.sync import is_synced


def deliver(sweep: Path, into: str | None, *, verify: bool, retry_for: float) -> Iterator[str]:
    """Bring MLflow up to date with a sweep's folder; yield what was written, and how to see it.

    Without `into` the sweep's own store is used, if this user has used that store before. What was written before is
    compared with MLflow only if `verify` is true.
    """
    folder = SweepFolder.open(sweep)
    folder.trials()  # a damaged record is refused before a store is made
    if into:
        uri = absolute(into)
    else:
        uri = trusted_uri(folder, folder.info().tracking_uri, flag="--into")
    name = printable(folder.path.name)
    if not verify and is_synced(folder, uri):
        yield f"{name}: up to date, nothing has changed since the last sync (--verify compares with MLflow)"
    else:
        check_store(uri)
        result = sync_folder(folder, uri, retry_for=retry_for, show_progress=True, verify=verify)
        yield f"{name}: {_result_text(result)}"
        if result.left_out:
            first = min(result.left_out)
            reason = "too large, or a link"
            note(f"left out {plural(len(result.left_out), 'file')} ({reason}), such as {first}")
    first_link, *other_links = mlflow_links(folder, uri)
    yield f"see them: {first_link}"
    for line in other_links:
        yield f"          {line}"


def _result_text(result: SyncResult) -> str:
    """
    >>> _result_text(SyncResult(updated=5, created=2))
    '5 runs brought up to date, 2 of them new'
    >>> _result_text(SyncResult(updated=1, restored=["0003 71/4.0"]))
    '1 run brought up to date, 0 of them new; restored after deletion in MLflow: 0003 71/4.0'
    """
    text = f"{plural(result.updated, 'run')} brought up to date, {result.created} of them new"
    if result.restored:
        text += f"; restored after deletion in MLflow: {printable(', '.join(result.restored))}"
    return text
