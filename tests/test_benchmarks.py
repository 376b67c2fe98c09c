"""The benchmarks: their statistics on known numbers, equal results on both sides of each comparison, and failures."""

import asyncio
import importlib
import inspect
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import answer, chaos, estimate, scale, search_pairs
from benchmarks.faults import Victim
from benchmarks.harness import Ratio, Spent, Spread, check_equal, measure, rounds, table
from benchmarks.peak import peak_bytes
from benchmarks.planted_bug import store_late
from benchmarks.world import FILE, StoredTokenizer, padded_ids, tokenised
from fpp_sweep.core.text.packing import Packing
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import TaskData
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.workers.actors import RayWorker
from fpp_sweep.workers.needs import WorkerNeeds
from fpp_sweep.workers.scheduler import TaskScheduler
from tests.kit.processes import environment

ROOT = Path(__file__).parent.parent
BENCHMARKS = re.findall(r"^\| \w+ \| `(\w+)` \|", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)
SHARED = {"clouds", "peak", "world"}  # modules with a command that other benchmarks use
STORED = json.loads(FILE.read_text())


def test_the_readme_lists_every_benchmark():
    runnable = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "__main__" in file.read_text()}
    assert sorted(BENCHMARKS) == sorted(runnable - SHARED)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_prints_its_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert end.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


def test_a_spread_is_the_median_and_the_extremes():
    assert Spread.of([5.0, 1.0, 2.0, 100.0]) == Spread(3.5, 1.0, 100.0)
    assert str(Spread.of([30.04])) == "30.0 (30.0..30.0)"


def test_ratios_are_taken_within_a_round():
    slow = [Spent(10.0, 8.0), Spent(100.0, 8.0), Spent(12.0, 8.0)]
    fast = [Spent(1.0, 2.0), Spent(10.0, 1.0), Spent(1.0, 4.0)]
    ratio = Ratio.of(slow, fast)
    assert ratio.wall == Spread(10.0, 10.0, 12.0)
    assert ratio.cpu == Spread(4.0, 2.0, 8.0)


def test_the_works_of_a_round_alternate_and_costs_are_per_unit():
    calls = []
    spent = rounds({"a": (lambda: calls.append("a"), 1), "b": (lambda: calls.append("b"), 2)}, 3, "cpu")
    assert calls == ["a", "b"] * 3
    assert [len(values) for values in spent.values()] == [3, 3]


def test_cpu_seconds_exclude_waiting():
    waited = measure(lambda: time.sleep(0.2), units=2)
    assert waited.wall == pytest.approx(0.1, abs=0.09)
    assert waited.cpu < waited.wall  # threads of libraries may use a little CPU time


def test_seconds_add_up():
    assert Spent(1, 2) + Spent(3, 4) * 2 - Spent(1, 1) == Spent(6, 9)


def test_a_table_has_a_column_for_every_key():
    assert table([{"K": 10, "x": "a"}, {"K": 47, "x": "b"}]).splitlines()[2:] == ["| 10 | a |", "| 47 | b |"]


@pytest.mark.parametrize(
    ("result", "message"), [([[0.6, 0.4]], "differ by"), ([[0.49999, 0.50001]], "predict different classes")]
)
def test_sides_that_differ_are_reported(result, message):
    expected = torch.tensor([[0.50001, 0.49999]])
    with pytest.raises(AssertionError, match=message):
        check_equal(torch.tensor(result), expected, "test", predictions=True)


def test_results_that_are_not_numbers_are_not_equal():
    with pytest.raises(AssertionError, match="differ by nan"):
        check_equal(torch.tensor([torch.nan]), torch.tensor([torch.nan]), "test")


def test_peak_memory_includes_freed_memory():
    before = peak_bytes()
    freed_tensor = torch.ones(64 * 2**20)
    del freed_tensor
    assert peak_bytes() >= max(before, 2**28)


def test_the_stored_texts_are_two_lists_of_class_names_with_token_ids():
    assert [len(STORED[part]) for part in ("prompt", "eurosat", "imagenet")] == [1, 10, 1000]
    layout = Packing.of([[*ids, STORED["eot"]] for _, ids in STORED["eurosat"]])
    assert len(layout) == 44
    names = [text.removesuffix(".") for text, _ in STORED["eurosat"]]
    ids = padded_ids(StoredTokenizer(STORED), names)
    assert ids.shape == (10, 77)
    assert (ids.argmax(dim=1) == torch.tensor([len(pair[1]) + 5 for pair in STORED["eurosat"]])).all()


def test_the_benchmark_of_answers_runs_all_its_parts_by_default(monkeypatch):
    ran = []
    parts = {name: lambda sweeps, images, name=name: ran.append((name, sweeps, images)) for name in ("null", "gain")}
    monkeypatch.setattr(answer, "PARTS", parts)
    answer.main(["--sweeps", "2", "--images", "30"])
    assert ran == [("null", 2, 30), ("gain", 2, 30)]


def test_one_pair_of_searches_has_no_standard_error():
    assert search_pairs.mean_with_error([1.5]) == "+1.5"
    assert search_pairs.mean_with_error([1.0, -3.0]) == "-1.0 +- 2.0"


def test_a_light_worker_answers_the_messages_of_the_scheduler(tmp_path):
    light = scale.LightActor(seconds=0.0)
    actor = SimpleNamespace(run=SimpleNamespace(remote=light.run))
    worker = RayWorker(actor, scale.model_info(), WorkerNeeds(workers=1, cpus=0.0, gpus=0.0, env={}), tmp_path)
    evaluation = EvalTask(config=TrialConfig(), dataset="set0", split="test", seed=0, start=0, stop=64)
    pretraining = PretrainTask(config=TrialConfig(), dataset="set0", seed=0)
    results = []
    for task in (pretraining, evaluation):
        results.append(asyncio.run(worker.run(task, [], "", TaskData(dataset=""))))
    assert len(results[0].prompt) == scale.PROMPT_BYTES
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


def test_a_chaos_run_needs_an_undisturbed_sweep_without_failed_trials(tmp_path, monkeypatch):
    """A trial that always fails would be equal in every sweep."""
    trial = {"kind": "trial", "number": 0, "state": "complete", "reason": None, "values": [70.0, 5.0]}
    found = {"records": {"trial-0000": trial}, "study": [(0, "COMPLETE")], "values": [(0, [70.0, 5.0])]}
    found["runs"] = [("0000", "FINISHED")]
    server = SimpleNamespace(uri="", kill=lambda: None)
    monkeypatch.setattr(chaos, "start_store", lambda root, name: server)
    monkeypatch.setattr(chaos, "start", lambda root, name, **options: SimpleNamespace(wait=lambda: 0))
    monkeypatch.setattr(chaos, "state", lambda root, name: found)
    assert chaos.run_undisturbed(tmp_path) == found
    trial["state"], trial["reason"] = "failed", "lost"
    with pytest.raises(InputError, match="trial-0000"):
        chaos.run_undisturbed(tmp_path)


def test_the_bug_is_planted_in_the_scheduler_of_a_disturbed_sweep(tmp_path, monkeypatch):
    started = {}
    monkeypatch.setattr(chaos, "start", lambda root, name, **options: started.update(options))
    chaos.start_driver(Victim(tmp_path, "struck", None, None, SimpleNamespace(uri="")), plant=True)
    code = "from fpp_sweep.workers.scheduler import TaskScheduler; print(TaskScheduler._store_result.__module__)"
    variables = environment(tmp_path) | started["variables"]
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "benchmarks.planted_bug\n"
    parameters = inspect.signature(TaskScheduler._store_result).parameters
    assert list(inspect.signature(store_late).parameters) == list(parameters)


def test_the_time_of_a_sweep_with_a_failed_trial_is_not_compared_with_its_estimate(tmp_path, monkeypatch):
    def run_command(folder, name, *words):
        sweep = SweepFolder(folder / "sweeps" / "made_up")
        write_records(sweep, "complete", "failed")
        sweep.info_file.write_text("{}")
        return "estimate: 2 min of CPU time, 80 s to 2.0 min with 2 workers like this one"

    monkeypatch.setattr(estimate, "run_command", run_command)
    with pytest.raises(InputError, match="trial-0001 failed: lost"):
        estimate.estimate_and_run("smoke", tmp_path / "run")


@pytest.mark.slow
def test_a_scale_sweep_does_all_its_tasks():
    words = "--trials 2 --workers 2 --processes 1 --datasets 1 --shards 1"
    line = [sys.executable, "-m", "benchmarks.scale", *words.split()]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 trials, 4 tasks (4 done)" in done.stdout


@pytest.mark.nightly
@pytest.mark.slow  # imports open_clip
def test_the_stored_texts_equal_the_output_of_clips_tokenizer():
    assert tokenised() == STORED


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [*("adapt", "pretrain", "features", "features --handing"), *("precision", "trial", "device_views")]
)
def test_both_sides_of_a_benchmark_give_the_same_results(command, tmp_path):
    out = tmp_path / "out.json"
    line = [sys.executable, "-m", *f"benchmarks.{command}".split(), "--quick", "--out", str(out)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "equal within" in done.stdout
    result = json.loads(out.read_text())
    assert result["machine"]["torch"] == torch.__version__
    assert result["measured"]
