"""The notebook and the example of docs/library.md, run as a newcomer runs them, and a sweep's view in a notebook."""

import json
import re
import subprocess
import sys

import pyarrow
import pytest
from pyarrow import parquet

from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Sweep
from tests.kit.processes import ROOT, environment
from tests.kit.records import build_sweep

NOTEBOOK = ROOT / "docs/first_sweep.ipynb"
CHECKS_PROGRAM = """
assert sweep.info.state == "finished", sweep.info.state
shown = sweep._repr_html_()
assert "<table>" in shown and "is finished (all 3 trials)" in shown
assert {"accuracy low", "ece/digits", "test/accuracy", "test/accuracy low"} <= set(table.columns), list(table.columns)
front = table[table.on_front]
assert (front["accuracy low"] < front["accuracy high"]).all() and (table.duration > 0).all()
figure = figures["front-0"]
assert type(figure).__name__ == "Figure" and sum(len(trace.x) for trace in figure.data) >= 3
assert "<div" in figure.to_html(include_plotlyjs=False)
samples = len(predictions)
assert samples == best.record.results["val"].samples, samples
hit = 100 * (predictions.label == predictions.predicted).groupby(predictions.dataset).mean().mean()
assert abs(hit - best.record.results["val"].average["accuracy"]) < 1e-9
assert len(list(Path("sweeps").glob("mine/**/*.parquet"))) == 1
"""


def notebook_code():
    document = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def test_the_stored_outputs_show_a_table_and_a_picture_and_no_path_of_the_machine_that_computed_them():
    document = json.loads(NOTEBOOK.read_text())
    outputs = [output for cell in document["cells"] for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert kinds >= {"text/html", "image/png"}
    assert not re.findall(r"/(?:tmp|root|home|work)/", json.dumps(document))


@pytest.mark.nightly
@pytest.mark.slow  # runs two sweeps, which share results
def test_the_notebook_and_the_example_run_unchanged(tmp_path):
    (tmp_path / "search_spaces").symlink_to(
        ROOT / "search_spaces"
    )  # the example reads this folder; the notebook needs no clone
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/library.md").read_text(), flags=re.M | re.S)
    program = "\n".join([example, 'assert sweep.info.state == "finished"', *notebook_code(), CHECKS_PROGRAM])
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_has_reasons_marks_durations_and_numbers_by_dataset(tmp_path):
    sweep = Sweep.open(build_sweep(tmp_path / "made", trials=6, failed_trials=(3,)).path)
    rows = {row["name"]: row for row in sweep.table()}
    failed, best = rows["trial-0003"], rows["trial-0005"]
    assert (failed["reason"], failed["duration"]) == ("FloatingPointError: non-finite objectives ['ece']", 5.0)
    assert (best["marks"], best["on_front"]) == ("best accuracy, best ece, knee", True)
    assert (best["duration"], best["accuracy/textures"]) == (50.0, 58.0)
    assert "test/ece/textures" in best
    assert (best["seconds"], best["test/seconds"]) == (45.0, 45.0)  # as objectives, not from start to end
    assert "seconds" not in failed
    assert "accuracy low" not in best  # there are no block statistics for an interval


def test_the_view_in_a_notebook_is_escaped_and_works_before_the_first_trial_ends(tmp_path):
    folder = build_sweep(tmp_path / "made", trials=0, baselines=(), state="running")
    with folder.locked():
        assert "made is running; no trial has begun." in Sweep(folder)._repr_html_()
    assert Sweep(folder).plot() == {}
    sweep = Sweep(build_sweep(tmp_path / "<b>", trials=2, failed_trials=()))
    assert "<b>" not in sweep._repr_html_()
    assert "<td" in sweep._repr_html_()


def test_a_trial_that_is_unknown_or_without_predictions_is_refused_in_one_line(tmp_path):
    sweep = Sweep(build_sweep(tmp_path / "made"))
    with pytest.raises(InputError, match="unknown trial of made 'trial-0042', did you mean"):
        sweep.trial("trial-0042")
    with pytest.raises(InputError, match="trial-0003 of made has no predictions on val; it is failed"):
        sweep.trial("trial-0003").predictions()


def test_predictions_in_a_file_whose_name_has_no_seed_are_refused(tmp_path):
    sweep = Sweep(build_sweep(tmp_path / "made"))
    folder = sweep.folder.artifacts("trial-0001") / "val"
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"id": ["a"]}), folder / "digits.seedless.predictions.parquet")
    with pytest.raises(InputError, match=r"digits\.seedless\.predictions\.parquet: the name has no seed"):
        sweep.trial("trial-0001").predictions()
