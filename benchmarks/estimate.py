"""The estimate of a dry run compared with the time of the sweep: `python -m benchmarks.estimate [smoke perturb vit]`.

Each sweep is estimated and run `--rounds` times by the commands that a user types, each time from an empty cache. `vit`
has the shape of ViT-B-16 and random weights, on a few of the embedded images. The middle of the estimate should be 0.75
to 1.33 times the measured time.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Spread, require_complete
from fpp_sweep.cli.command import parser, run
from tests.kit.processes import only_sweep, run_command

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
    options.add_argument("sweeps", nargs="*", choices=["smoke", "perturb", "vit", []], help="default: all")
    options.add_argument("--rounds", type=int, default=1)
    args = options.parse_args(argv)
    for name in args.sweeps or ("smoke", "perturb", "vit"):
        with tempfile.TemporaryDirectory(prefix="estimate-") as folder:
            rounds = [estimate_and_run(name, Path(folder) / str(number)) for number in range(args.rounds)]
        low, high, took = (Spread.of(column) for column in zip(*rounds, strict=True))
        ratio = Spread.of([(least + most) / 2 / seconds for least, most, seconds in rounds])
        print(f"{name}: estimated {low} to {high} s, took {took} s; middle over taken {ratio:.2f}", flush=True)


def estimate_and_run(name: str, folder: Path) -> tuple[float, float, float]:
    """Return the lower and the upper end of the estimate, and the time that the sweep took, in seconds."""
    folder.mkdir()
    space = write_vit_space(folder) if name == "vit" else SPACES / f"{name}.yaml"
    low, high = parse_estimate(run_command(folder, "tune", "--space", str(space), "--dry-run"))
    began = time.perf_counter()
    run_command(folder, "tune", "--space", str(space))
    seconds = time.perf_counter() - began
    require_complete(only_sweep(folder), trials=1)
    return low, high, seconds


def parse_estimate(text: str) -> tuple[float, float]:
    """Return the ends of a dry run's estimate, in seconds.

    >>> parse_estimate("estimate: 2 min of CPU time, 80 s to 2.0 min with 2 workers like this one")
    (80.0, 120.0)
    >>> parse_estimate("estimate: 2 min of CPU time, 1.5 to 2.0 min with 2 workers like this one")
    (90.0, 120.0)
    """
    words = re.search(r"estimate: .*, (?:([\d.]+)(?: (s|min|h))? to )?([\d.]+) (s|min|h) with", text)
    assert words, text
    low, low_unit, high, unit = words.groups()
    most = float(high) * UNITS[unit]
    if low is None:
        return most, most
    return float(low) * UNITS[low_unit or unit], most


def write_vit_space(folder: Path) -> Path:
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
