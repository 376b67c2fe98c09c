"""The short form of benchmarks/fuzz.py: each reader gets the files of the corpus, and files with small changes."""

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import CORPUS, KEY, TARGETS, example, guarded, model, problem_of
from fpp_sweep.trial.store import TaskStore

SLOW_READERS = {"checkpoint", "coop", "space", "experiment"}  # these get fewer changed files


@pytest.fixture(scope="module", autouse=True)
def load_model():
    """Load the model before the first reader runs: its libraries change the environment, which no reader may do."""
    model()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_of_the_corpus_is_read_or_refused(tmp_path, path):
    assert problem_of(TARGETS[path.parent.name], tmp_path, path.read_bytes()) is None


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_accepts_a_file_of_its_corpus(tmp_path, name):
    """If a reader refuses all of them for their version, it refuses all changed files for that reason, too."""
    target = TARGETS[name]
    accepted = []
    for path in sorted((CORPUS / name).iterdir()):
        file = tmp_path / path.name / target.file
        file.parent.mkdir(parents=True)
        file.write_bytes(path.read_bytes())
        with suppress(target.raises):
            target.read(file)
            accepted.append(path.name)
    assert accepted


@pytest.mark.parametrize("name", ["task", "sealed"])
def test_the_result_of_the_corpus_is_a_result(tmp_path, name):
    """The reader of results answers None for a damaged file, and for one of another version."""
    file = tmp_path / TARGETS[name].file
    file.parent.mkdir()
    file.write_bytes((CORPUS / name / "result.task").read_bytes())
    assert TaskStore(tmp_path).get(KEY) is not None


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
