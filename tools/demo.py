"""Run a sweep and a reproduction, and store their pages in docs/demo for the README: `python -m tools.demo`.

Both use the embedded model and therefore take only minutes. They run in a temporary folder and print commands as in an
activated environment.
"""

from __future__ import annotations

import base64
import gzip
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fpp_sweep.report.html import pack

DEMO = Path(__file__).parents[1] / "docs" / "demo"
SWEEP = ("tune", "--space", "perturb", "--name", "perturb")
REPRODUCTION = ("reproduce", "--table", "main", "ablation", "--name", "paper")
COLUMNS = "100"  # width of the terminal


def main() -> None:
    DEMO.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name).resolve()
        text = run(SWEEP, folder)
        (DEMO / "sweep.txt").write_text(without_folder(f"$ fpp-sweep {' '.join(SWEEP)}\n{text}", folder), "utf-8")
        store(folder / "sweeps/perturb/report/sweep.html", folder, "sweep.html")
        run(REPRODUCTION, folder)
        store(folder / "reproductions/paper/reproduction.html", folder, "reproduction.html")


def run(words: tuple[str, ...], folder: Path) -> str:
    """Run a command in a folder; return what it prints on both streams, in order."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, "COLUMNS": COLUMNS, "NO_COLOR": "1"}
    environment["FPP_SWEEP_CACHE"] = str(folder / "cache")  # results of an earlier run would take 0 s
    command = [sys.executable, "-m", "fpp_sweep", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} has failed:\n{done.stdout}")
    return done.stdout


def store(page: Path, folder: Path, name: str) -> None:
    (DEMO / name).write_text(page_without_folder(page.read_text("utf-8"), folder), "utf-8")


def page_without_folder(text: str, folder: Path) -> str:
    """Write paths relative to the folder, in the text of a page and in the packed data of its trials."""

    def repack(match: re.Match[str]) -> str:
        data = gzip.decompress(base64.b64decode(match[2])).decode()
        return match[1] + pack(without_folder(data, folder))

    return re.sub(r'(id="page-data">)([^<]*)', repack, without_folder(text, folder))


def without_folder(text: str, folder: Path) -> str:
    """Write paths relative to the folder that the commands ran in."""
    return text.replace(f"file://{folder}/", "").replace(f"{folder}/", "").replace(str(folder), ".")


if __name__ == "__main__":
    main()
