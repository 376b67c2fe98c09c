"""Results and failures survive pickling and storing."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.results import TaskFailed, TaskResult, TaskStore, pack, pack_predictions, unpack
from tests.kit.tasks import predictions, same_predictions

RESULT = TaskResult(
    predictions=pack_predictions(predictions(9, columns={"logits": (3,)})),
    state=b"where the stream is",
    seconds={"adapt": 3.0},
    worker_seconds=4.0,
    adapters=("one",),
)


def through_a_file(original):
    """Return the predictions of a result that was packed and unpacked."""
    return unpack(pack(TaskResult(predictions=pack_predictions(original)))).read_predictions()


@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(1, 70),
    classes=st.integers(2, 12),
    seed=st.integers(0, 9),
    columns=st.dictionaries(
        st.sampled_from(["logits", "ids", "prompt", "bins_counts", "x"]), st.sampled_from([(), (3,), (0,), (2, 2)])
    ),
)
def test_predictions_with_any_columns_survive_packing(samples, classes, seed, columns):
    original = predictions(samples, classes=classes, seed=seed, columns=columns)
    assert same_predictions(through_a_file(original), original)


@given(st.lists(st.text(max_size=12), min_size=3, max_size=3, unique=True))
def test_any_sample_name_survives_packing(ids):
    original = replace(predictions(3), ids=tuple(ids))
    assert same_predictions(through_a_file(original), original)


@given(prompt=st.none() | st.binary(max_size=99), state=st.none() | st.binary(max_size=99))
@example(b"", None)
@example(None, b"")
def test_prompts_and_states_survive_packing(prompt, state):
    unpacked = unpack(pack(TaskResult(prompt=prompt, state=state)))
    assert (unpacked.prompt, unpacked.state, unpacked.predictions) == (prompt, state, None)


# ------------------------------------------------------------ failures


def with_traceback(error):
    """Return the exception with the traceback that raising adds."""
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "where", "reason"),
    [
        (
            RuntimeError("CUDA error:\n  out of memory"),
            "dtd, here",
            "dtd, here: RuntimeError: CUDA error: out of memory",
        ),
        (InputError("no such prompt"), "dtd, here", "dtd, here: no such prompt"),
        (InputError("no such prompt"), "", "no such prompt"),
        (KeyError(), "", "KeyError"),
    ],
)
def test_a_failure_names_location_and_cause_in_one_line_and_keeps_the_traceback(error, where, reason):
    failure = TaskFailed.of(with_traceback(error), where)
    assert str(failure) == failure.reason == reason
    assert failure.details.startswith("Traceback")
    assert f"raise error\n{type(error).__module__.replace('builtins', '')}" in failure.details


@pytest.mark.parametrize(
    ("error", "retry_elsewhere"),
    [
        (MemoryError("no"), True),
        (RuntimeError("no"), True),
        (torch.OutOfMemoryError("no"), True),
        (FileNotFoundError("no"), True),
        (InputError("no"), False),
        (FloatingPointError("no"), False),
        (ValueError("no"), False),
    ],
    ids=repr,
)
def test_a_pickled_failure_keeps_its_permission_to_retry_elsewhere(error, retry_elsewhere):
    failure = pickle.loads(pickle.dumps(TaskFailed.of(with_traceback(error), "dtd")))
    assert (failure.reason[:5], failure.details[:9], failure.retry_elsewhere) == ("dtd: ", "Traceback", retry_elsewhere)


# ------------------------------------------------------------ stores of results


def only_file(folder):
    (path,) = (entry for entry in folder.rglob("*") if entry.is_file())
    return path


@pytest.fixture(scope="module")
def stored_file(tmp_path_factory):
    store = TaskStore(tmp_path_factory.mktemp("tasks"))
    store.put("ab12", RESULT)
    path = only_file(store.root)
    return store, path, path.read_bytes()


@settings(deadline=None, max_examples=60)
@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_file_with_a_damaged_byte_is_ignored(stored_file, position, flip):
    store, path, content = stored_file
    position %= len(content)
    path.write_bytes(content[:position] + bytes([content[position] ^ flip]) + content[position + 1 :])
    assert store.get("ab12") is None
    path.write_bytes(content)
    assert store.get("ab12") is not None


@pytest.mark.parametrize("prompt", [b"a prompt", None])
def test_a_file_under_another_key_is_ignored(tmp_path, prompt):
    store = TaskStore(tmp_path)
    store.put("ab12", TaskResult(prompt=prompt))
    path = only_file(tmp_path)
    path.with_name(path.name.replace("ab12", "ab99")).write_bytes(path.read_bytes())
    assert store.get("ab12") is not None
    assert store.get("ab99") is None


def test_a_result_that_cannot_be_written_completely_leaves_no_file(tmp_path, monkeypatch):
    def write_half(path, content):
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    store = TaskStore(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(OSError, match="No space left"):
        store.put("ab12", RESULT)
    monkeypatch.undo()
    assert store.get("ab12") is None
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file()]


def test_a_result_is_replaced_atomically(tmp_path):
    """A reader that opened the old file reads the whole old result."""
    store = TaskStore(tmp_path)
    store.put("ab12", TaskResult(prompt=b"old"))
    with only_file(tmp_path).open("rb") as reader:
        store.put("ab12", TaskResult(prompt=b"new"))
        assert b"old" in reader.read()
    assert store.get("ab12").prompt == b"new"


def test_a_cached_result_has_no_cost():
    computed = TaskResult(
        seconds={"adapt": 1.0}, spent={"adapt": 1.0}, features={"images": 3.0, "tower": 0.5}, worker_seconds=2.0
    )
    cached = computed.from_cache()
    assert (cached.seconds, cached.features, cached.worker_seconds) == ({}, {}, 0.0)
    assert cached.spent == computed.spent
