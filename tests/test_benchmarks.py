"""The benchmarks: each has a row in the README and a help, and both sides of a comparison give equal results."""

import asyncio
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import scale
from benchmarks.harness import Ratio, Spent, Spread, check_equal
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import TaskData
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.workers.actors import RayWorker

ROOT = Path(__file__).parent.parent
BENCHMARKS = re.findall(r"^\| `(\w+)` \|", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)


def test_the_readme_lists_every_benchmark():
    runnable = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "run(main)" in file.read_text()}
    assert sorted(BENCHMARKS) == sorted(runnable)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_prints_its_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert end.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


def test_ratios_are_taken_within_a_round():
    slow = [Spent(10.0, 8.0), Spent(100.0, 8.0), Spent(12.0, 8.0)]
    fast = [Spent(1.0, 2.0), Spent(10.0, 1.0), Spent(1.0, 4.0)]
    ratio = Ratio.of(slow, fast)
    assert ratio.wall == Spread(10.0, 10.0, 12.0)
    assert ratio.cpu == Spread(4.0, 2.0, 8.0)


@pytest.mark.parametrize(
    ("result", "message"),
    [([[0.6, 0.4]], "differ by"), ([[0.49999, 0.50001]], "predict different classes"), ([[torch.nan, 1]], "by nan")],
)
def test_sides_that_differ_are_reported(result, message):
    expected = torch.tensor([[0.50001, 0.49999]])
    with pytest.raises(AssertionError, match=message):
        check_equal(torch.tensor(result), expected, "test", predictions=True)


def test_a_light_worker_answers_the_messages_of_the_scheduler(tmp_path):
    light = scale.LightActor(seconds=0.0)
    actor = SimpleNamespace(run=SimpleNamespace(remote=light.run))
    worker = RayWorker(actor, scale.model_info(), tmp_path)
    evaluation = EvalTask(config=TrialConfig(), dataset="set0", split="test", seed=0, start=0, stop=64)
    pretraining = PretrainTask(config=TrialConfig(), dataset="set0", seed=0)
    results = []
    for task in (pretraining, evaluation):
        results.append(asyncio.run(worker.run(task, [], "", TaskData(dataset=""))))
    assert results[0].prompt == scale.PROMPT
    assert results[1].predictions


def write_records(folder, *states):
    for number, state in enumerate(states):
        reason = "lost" if state == "failed" else None
        folder.write_trial(TrialRecord(name=f"trial-{number:04d}", kind="trial", state=state, reason=reason))


def test_a_scale_sweep_without_all_its_trials_or_tasks_is_an_error(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    args = scale.parse(["--trials", "2", "--datasets", "1", "--shards", "1"])
    write_records(folder, "complete")
    with pytest.raises(InputError, match="1 of 2 trials ran"):
        scale.require_all_done(folder, args, done=4)
    write_records(folder, "complete", "complete")
    scale.require_all_done(folder, args, done=4)
    with pytest.raises(InputError, match="3 of 4 tasks were done"):
        scale.require_all_done(folder, args, done=3)
    write_records(folder, "complete", "failed")
    with pytest.raises(InputError, match="trial-0001 failed: lost"):
        scale.require_all_done(folder, args, done=4)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_scale_sweep_does_all_its_tasks():
    words = "--trials 2 --workers 2 --processes 1 --datasets 1 --shards 1"
    line = [sys.executable, "-m", "benchmarks.scale", *words.split()]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 trials, 4 tasks (4 done)" in done.stdout


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("command", ["adapt", "pretrain", "features", "trial"])
def test_both_sides_of_a_benchmark_give_the_same_results(command, tmp_path):
    out = tmp_path / "out.json"
    line = [sys.executable, "-m", f"benchmarks.{command}", "--quick", "--out", str(out)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "equal within" in done.stdout
    result = json.loads(out.read_text())
    assert result["machine"]["torch"] == torch.__version__
    assert result["measured"]
