"""The short form of benchmarks/fuzz.py: each reader gets the files of the corpus, and files with small changes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import CORPUS, TARGETS, example, guarded, model, problem_of

SLOW_READERS = {"checkpoint", "coop", "space", "experiment"}  # these get fewer changed files


@pytest.fixture(scope="module", autouse=True)
def load_model():
    """Load the model before the first reader runs: its libraries change the environment, which no reader may do."""
    model()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_of_the_corpus_is_read_or_refused(tmp_path, path):
    assert problem_of(TARGETS[path.parent.name], tmp_path, path.read_bytes()) is None


@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_file_of_the_corpus_is_read_or_refused(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp(name)

    @settings(max_examples=30 if name in SLOW_READERS else 150)
    @given(seed=st.integers(0, 2**64))
    def read_changed_file(seed):
        data = example(random.Random(seed), name)
        assert problem_of(TARGETS[name], folder, data) is None, data

    read_changed_file()


def test_the_guard_reports_written_files_and_limits_memory(tmp_path):
    with guarded() as forbidden_actions:
        (tmp_path / "made").mkdir()
        (tmp_path / "written").write_text("")
    assert len(forbidden_actions) == 2
    with guarded(), pytest.raises(MemoryError):
        bytearray(2**31)
