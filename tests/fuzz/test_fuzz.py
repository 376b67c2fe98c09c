"""The short form of benchmarks/fuzz.py: each reader on what is in the corpus, and on what is nearly that."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import CORPUS, TARGETS, example, guarded, model, problem_of

SLOW = {"checkpoint", "coop", "space", "experiment"}


@pytest.fixture(scope="module", autouse=True)
def loaded():
    model()  # libraries set the environment when they are loaded


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_of_the_corpus_is_read_or_refused(tmp_path, path):
    assert problem_of(TARGETS[path.parent.name], tmp_path, path.read_bytes()) is None


@pytest.mark.parametrize("name", TARGETS)
def test_a_file_that_is_nearly_right_is_read_or_refused(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp(name)

    @settings(max_examples=30 if name in SLOW else 150)
    @given(seed=st.integers(0, 2**64))
    def near(seed):
        data = example(random.Random(seed), name)
        assert problem_of(TARGETS[name], folder, data) is None, data

    near()


def test_the_watch_sees_what_no_reader_may_do(tmp_path):
    with guarded() as seen:
        (tmp_path / "made").mkdir()
        (tmp_path / "written").write_text("")
    assert len(seen) == 2
    with guarded(), pytest.raises(MemoryError):
        bytearray(2**31)
