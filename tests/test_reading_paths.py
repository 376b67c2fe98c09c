"""The walks of tools/reading_paths.yaml: each step leads to the next, and no walk has too many files."""

import pytest

from fpp_sweep import evaluate
from tools import reading_paths
from tools.reading_paths import StackRecorder, Step, is_named, missing_links, read_walks

WALKS = {walk.name: walk for walk in read_walks()}


@pytest.mark.parametrize("name", WALKS)
def test_every_step_is_reached_from_the_one_before(name):
    assert missing_links(WALKS[name]) == []


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_has_no_more_files_than_allowed(name):
    walk = WALKS[name]
    print(f"{name}) {walk.title}: {len(walk.files)} files, goal {walk.goal}")
    assert len(walk.files) <= walk.goal


def test_the_walk_of_gamma2_has_all_files_that_a_real_run_calls(tmp_path):
    """A file counts if one of its functions is on the stack when the run reaches the end of a chain of the walk."""
    walk = WALKS["a"]
    words = ["--prompt", "fpp", "--method", "tpt", "--datasets", "digits", "--limit", "2", "--out", str(tmp_path)]
    settings = ["--set", "fpp.gamma2=0.37", "fpp.steps=1", "views.count=2", "adapt.view_fraction=0.5"]
    settings.append("work.reuse_results=false")  # results of an earlier run would skip the pretraining
    recorder = StackRecorder(walk)
    recorder.run(lambda: evaluate.main([*words, *settings]))
    assert recorder.seen_chains == set(range(len(walk.chains)))
    assert recorder.files == set(walk.files)


def test_a_step_that_the_source_does_not_name_is_reported():
    assert is_named(Step("steer.py", "main"), Step("sweep/steering.py", "stop_trial"))
    assert not is_named(Step("steer.py", "parse"), Step("sweep/steering.py", "stop_trial"))
    assert not is_named(Step("steer.py", "main"), Step("sweep/request.py", "space_to_tune"))


def test_a_walk_with_a_missing_step_or_a_loose_chain_is_reported():
    first = (Step("steer.py", "main"), Step("sweep/steering.py", "missing"))
    second = (Step("tune.py", "main"), Step("sweep/launch.py", "launch"))
    walk = reading_paths.Walk("x", "title", goal=4, chains=(first, second))
    assert missing_links(walk) == [
        "steer.py main: does not name sweep/steering.py missing",
        "tune.py main: a chain starts here, and no earlier chain has this step",
        "sweep/steering.py missing: does not exist",
    ]
