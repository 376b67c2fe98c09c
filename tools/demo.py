"""Run a sweep and a reproduction, and write what the docs show of them: `python -m tools.demo`.

One run makes all of it: docs/demo (pages and the text of the terminal), docs/images/front.png and page.png (the page,
if chromium is installed), and the blocks below a line `<!-- demo: NAME -->` in README.md and docs/first_sweep.md. Both
commands use the embedded model and therefore take only minutes. They run in a temporary folder and print commands as in
an activated environment. `--trials N` makes a small run, into `--into FOLDER`.
"""

from __future__ import annotations

import base64
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from fpp_sweep.cli import parser, run
from fpp_sweep.report.html import pack

ROOT = Path(__file__).parents[1]
SWEEP = ("tune", "--space", "perturb", "--name", "perturb")
REPRODUCTION = ("reproduce", "--table", "main", "ablation", "--name", "paper")
COLUMNS = "100"  # width of the terminal
PAGES = ("README.md", "docs/first_sweep.md")  # pages with blocks of the run
BLOCK = re.compile(r"(<!-- demo: (\w+) -->\n)(```text\n.*?\n```|[^\n]*)", re.DOTALL)
FRONT_ROWS = 3  # rows of the front that the tutorial shows


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("tools.demo", __doc__ or "")
    options.add_argument("--trials", metavar="N", help="trials of the sweep; the README's are those of perturb.yaml")
    options.add_argument("--into", type=Path, default=ROOT, metavar="FOLDER", help="where README.md and docs/ are")
    args = options.parse_args(argv)
    small = ("--trials", args.trials, "--limit", "40") if args.trials else ()
    demo, images = args.into / "docs/demo", args.into / "docs/images"
    demo.mkdir(parents=True, exist_ok=True)
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name).resolve()
        began = time.monotonic()
        text = run_command((*SWEEP, *small), folder)
        minutes = (time.monotonic() - began) / 60
        text = without_folder(f"$ fpp-sweep {' '.join(SWEEP)}\n{text}", folder)
        (demo / "sweep.txt").write_text(text, "utf-8")
        report = folder / "sweeps/perturb/report"
        store(report / "sweep.html", folder, demo / "sweep.html")
        shutil.copy(report / "front.png", images / "front.png")
        photograph(report / "sweep.html", images / "page.png")
        run_command((*REPRODUCTION, *small[2:]), folder)
        store(folder / "reproductions/paper/reproduction.html", folder, demo / "reproduction.html")
    blocks = {"answer": fenced(answer_of(text)), "front": fenced(front_of(text)), "made": made(minutes)}
    for page in PAGES:
        path = args.into / page
        path.write_text(with_blocks(path.read_text("utf-8"), blocks), "utf-8")


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """Return a page whose blocks of the run are replaced."""
    return BLOCK.sub(lambda match: match[1] + blocks[match[2]], text)


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def answer_of(text: str) -> str:
    """Return the answer, the differences of the champion, and the notes below them."""
    return text.partition("\nAnswer\n")[2].partition("\n\nSettings of")[0].rstrip()


def front_of(text: str) -> str:
    """Return the first rows of the front, by the search and by the final stage."""
    lines = text.partition("\nfront of perturb")[2].splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("trial "))
    return "\n".join(line.rstrip() for line in lines[head - 1 : head + 1 + FRONT_ROWS])  # with the splits above


def made(minutes: float) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "optuna", "ray"))
    return f"This run of {date.today()} took {minutes:.0f} minutes on {os.cpu_count()} cores ({versions})."


def photograph(page: Path, picture: Path) -> None:
    """Write a picture of the top of a page; without a browser, say so and leave the picture that is there."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print(f"no chromium: {picture.name} is not made anew", file=sys.stderr)
        return
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,900"]
    command += ["--virtual-time-budget=10000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def run_command(words: tuple[str, ...], folder: Path) -> str:
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


def store(page: Path, folder: Path, target: Path) -> None:
    """Write a page with paths relative to the folder, in its text and in the packed data of its trials."""

    def repack(match: re.Match[str]) -> str:
        data = gzip.decompress(base64.b64decode(match[2])).decode()
        return match[1] + pack(without_folder(data, folder))

    text = without_folder(page.read_text("utf-8"), folder)
    target.write_text(re.sub(r'(id="page-data">)([^<]*)', repack, text), "utf-8")


def without_folder(text: str, folder: Path) -> str:
    """Write paths relative to the folder that the commands ran in."""
    return text.replace(f"file://{folder}/", "").replace(f"{folder}/", "").replace(str(folder), ".")


if __name__ == "__main__":
    run(main)
