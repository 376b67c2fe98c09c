"""The pages of docs/demo: `python -m tools.demo` runs the README's first sweep and a reproduction, and copies them.

It runs in FOLDER, which stands in the pages' commands, and takes some minutes on two cores. Run it again after a change
of a page; a finished part is not run again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fpp_sweep.spec.messages import stage

FOLDER = Path("/tmp/fpp_sweep-demo")
ROOT = Path(__file__).parents[1]
DEMO = ROOT / "docs" / "demo"
SWEEP = ("tune", "--space", "perturb", "--name", "first")
REPRODUCTION = ("reproduce", "--table", "main", "--limit", "40", "--out", "reproductions/main")
PAGES = {"sweep.html": "sweeps/first/report/sweep.html", "reproduction.html": "reproductions/main/reproduction.html"}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    if (FOLDER / "sweeps/first/sweep.json").is_file():
        run(*SWEEP, "--resume")
    else:
        run(*SWEEP)
    run(*REPRODUCTION)
    run("show", "first", "--page")
    DEMO.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        shutil.copyfile(FOLDER / page, DEMO / name)


def run(*words: str) -> None:
    stage(f"fpp-sweep {' '.join(words)}")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    subprocess.run([sys.executable, "-m", "fpp_sweep", *words], cwd=FOLDER, env=environment, check=True)


if __name__ == "__main__":
    main()
