"""Bring MLflow up to date from a sweep's folder: `python -m fpp_sweep.sync sweeps/NAME`.

Use it for a sweep that ended while MLflow could not be reached, or with --into to copy a sweep to another MLflow, for
example a sweep that you received. Every run, param and metric is written once, however often you call it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import note, plural, printable
from fpp_sweep.tracking import absolute, check_store, mlflow_links, sync_folder, trusted_uri
from fpp_sweep.tracking.sync import SyncResult, is_synced

RETRY_SECONDS = 120.0  # without progress


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    folder = SweepFolder.open(args.folder)
    uri = absolute(args.into) if args.into else trusted_uri(folder, folder.info().tracking_uri, flag="--into")
    name = printable(folder.path.name)
    if not args.verify and is_synced(folder, uri):
        print(f"{name}: up to date, nothing has changed since the last sync (--verify compares with MLflow)")
    else:
        check_store(uri)
        result = sync_folder(folder, uri, retry_for=args.retry_for, show_progress=True)
        print(f"{name}: {summary(result)}")
        if result.left_out:
            first = min(result.left_out)
            note(f"left out {plural(len(result.left_out), 'link')} that lead out of the folder, such as {first}")
    print("see them:", "\n          ".join(mlflow_links(folder, uri)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.sync", __doc__ or "")
    add = options.add_argument
    add("folder", type=Path, metavar="SWEEP_FOLDER", help="for example sweeps/perturb-20261120-185232")
    add("--into", metavar="URI", help="of the MLflow store; default: the sweep's own, if you have used it before")
    add("--verify", action="store_true", help="compare with MLflow even if nothing has changed since the last sync")
    add(
        "--retry-for",
        type=float,
        default=RETRY_SECONDS,
        metavar="SECONDS",
        help="repeat failed requests until there was no progress for so long (default: %(default)g)",
    )
    return options.parse_args(argv)


def summary(result: SyncResult) -> str:
    """
    >>> summary(SyncResult(updated=5, created=2))
    '5 runs brought up to date, 2 of them new'
    """
    text = f"{plural(result.updated, 'run')} brought up to date, {result.created} of them new"
    if result.restored:
        text += f"; restored after deletion in MLflow: {printable(', '.join(result.restored))}"
    return text


if __name__ == "__main__":
    run(main)
