"""Makes the page of a folder again, from its records alone.

python -m fpp_sweep.report sweeps/NAME            report/sweep.html, with the tables and configs beside it
python -m fpp_sweep.report reproductions/NAME     reproduction.html: all its tables and figures
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report import write_report
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.process import sleep_when_idle


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    plugins.load(plugins.read(args.plugin))
    print(f"page: {written(args.folder).resolve().as_uri()}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.report", __doc__ or "")
    options.add_argument("folder", type=Path, help="of a sweep, or of a reproduction")
    options.add_argument(
        "--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP
    )
    return options.parse_args(argv)


def written(path: Path) -> Path:
    """The page of whatever the folder is of."""
    folder = SweepFolder(path)
    if folder.info_file.is_file():
        write_report(folder, pages=True)
        return folder.report / "sweep.html"
    if (path / "reproduction.json").is_file():
        from fpp_sweep.reproduce.page import write_page

        return write_page(path)
    raise InputError(f"{path} is neither a sweep's folder (with sweep.json) nor a reproduction's (reproduction.json)")


if __name__ == "__main__":
    run(main)
