"""What `--dry-run` says beside what a sweep takes: `python -m benchmarks.estimate [smoke perturb vit]`.

Each sweep is estimated and run `--rounds` times in turn, by the commands that a user types, from an empty cache. `vit`
has the shape of ViT-B-16, with random weights, on a few of the embedded images. The goal: 0.75 to 1.33.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Spread
from fpp_sweep.cli.command import parser, run
from fpp_sweep.spec.errors import InputError
from tests.drivers import environment

SPACES = Path(__file__).parent.parent / "search_spaces"
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
VIT = """
question: How long does a large model take?
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma2: {low: 0.1, high: 20, log: true}
  adapt.lr: {low: 0.001, high: 0.02, log: true}
search: {trials: 2}
work: {model: "ViT-B-16+quickgelu:CHECKPOINT", datasets: [scenes, digits], limit: 6, baselines: [zero_shot]}
"""


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.estimate", __doc__ or "")
    options.add_argument("sweeps", nargs="*", choices=["smoke", "perturb", "vit", []], help="all unless named")
    options.add_argument("--rounds", type=int, default=1)
    args = options.parse_args(argv)
    for name in args.sweeps or ("smoke", "perturb", "vit"):
        with tempfile.TemporaryDirectory(prefix="estimate-") as folder:
            found = [compared(name, Path(folder) / str(number)) for number in range(args.rounds)]
        said, took = (Spread.of(each) for each in zip(*found, strict=True))
        ratio = Spread.of([one / other for one, other in found])
        print(f"{name}: said {said} s, took {took} s; said over taken {ratio:.2f}", flush=True)


def compared(name: str, folder: Path) -> tuple[float, float]:
    """Seconds: as estimated, and as they were."""
    folder.mkdir()
    space = checkpointed(folder) if name == "vit" else SPACES / f"{name}.yaml"
    dry = tune(folder, "--space", str(space), "--dry-run")
    words = re.search(r"estimate: .*, ([\d.]+) (s|min|h) with", dry)
    assert words, dry
    began = time.perf_counter()
    tune(folder, "--space", str(space))
    return float(words[1]) * UNITS[words[2]], time.perf_counter() - began


def tune(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "fpp_sweep.tune", *words]
    env = environment(folder)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise InputError(done.stderr.strip())
    return done.stdout


def checkpointed(folder: Path) -> Path:
    import open_clip
    import torch

    torch.manual_seed(0)
    checkpoint = folder / "random.pt"
    torch.save(open_clip.create_model("ViT-B-16").state_dict(), checkpoint)
    space = folder / "vit.yaml"
    space.write_text(VIT.replace("CHECKPOINT", str(checkpoint)))
    return space


if __name__ == "__main__":
    run(main)
