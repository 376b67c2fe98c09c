"""Results travel and rest unchanged; a key means one result, whoever asks."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from fpp_sweep.trial.tasks import PretrainTask
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fpp_sweep.config import TrialConfig
from fpp_sweep.trial.results import Done, UnitStore, cost, pack, shards, unpack
from tests.trial.made import NAMES, evaluation, facts, names_of, predictions, same_predictions

DONE = Done(predictions=predictions(9), skipped=2, seconds={"adapt": 3.0}, held=4.0)


@settings(deadline=None, max_examples=40)
@given(samples=st.integers(0, 70), classes=st.integers(2, 12), seed=st.integers(0, 9), skipped=st.integers(0, 5))
def test_predictions_come_out_of_their_bytes_as_they_went_in(samples, classes, seed, skipped):
    made = predictions(samples, classes=classes, seed=seed) if samples else None
    found = unpack(pack(Done(predictions=made, skipped=skipped, seconds={})))
    assert same_predictions(found.predictions, made)
    assert (found.skipped, found.prompt) == (skipped, None)


@given(st.lists(st.text(max_size=12), min_size=3, max_size=3, unique=True))
def test_any_name_of_a_sample_survives(ids):
    made = replace(predictions(3), ids=tuple(ids))
    found = unpack(pack(Done(predictions=made, seconds={})))
    assert same_predictions(found.predictions, made)


@given(st.binary(max_size=200))
@example(b"")
def test_a_prompt_comes_out_as_it_went_in(data):
    found = unpack(pack(Done(prompt=data, seconds={})))
    assert (found.prompt, found.predictions, found.skipped) == (data, None, 0)


def test_what_was_kept_cost_nothing_to_get(tmp_path):
    store = UnitStore(tmp_path)
    store.put("ab12", DONE)
    found = store.get("ab12")
    assert same_predictions(found.predictions, DONE.predictions)
    assert (found.skipped, dict(found.seconds), found.held) == (2, {}, 0.0)
    assert store.get("ab13") is None


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    store = UnitStore(tmp_path_factory.mktemp("units"))
    store.put("ab12", DONE)
    (path,) = (each for each in store.root.rglob("*") if each.is_file())
    return store, path, path.read_bytes()


@settings(deadline=None, max_examples=60)
@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_damaged_byte_makes_it_work_to_be_done_again(unit, place, flip):
    store, path, content = unit
    place %= len(content)
    path.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
    assert store.get("ab12") is None
    path.write_bytes(content)
    assert store.get("ab12") is not None


@settings(deadline=None, max_examples=40)
@given(length=st.integers(0, 10**6))
@example(0)
@example(32)
def test_half_a_file_is_none(unit, length):
    store, path, content = unit
    path.write_bytes(content[: length % len(content)])
    assert store.get("ab12") is None
    path.write_bytes(content)


@pytest.mark.parametrize("prompt", [b"a prompt", None])
def test_a_file_under_another_key_is_not_taken_for_it(tmp_path, prompt):
    store = UnitStore(tmp_path)
    store.put("ab12", Done(prompt=prompt, seconds={}))
    (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
    path.with_name(path.name.replace("ab12", "ab99")).write_bytes(path.read_bytes())
    assert store.get("ab12") is not None
    assert store.get("ab99") is None


def test_a_folder_where_a_file_belongs_is_nothing(unit):
    store, path, _ = unit
    path.with_name(path.name.replace("ab12", "ab34")).mkdir()
    assert store.get("ab34") is None


def test_a_unit_that_cannot_be_written_whole_is_not_there(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    store = UnitStore(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.put("ab12", DONE)
    monkeypatch.undo()
    assert store.get("ab12") is None
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_unit_is_replaced_in_one_step(tmp_path):
    """Whoever reads while it is written has the old one or the new one."""
    store = UnitStore(tmp_path)
    store.put("ab12", Done(prompt=b"old", seconds={}))
    (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
    with path.open("rb") as reader:
        store.put("ab12", Done(prompt=b"new", seconds={}))
        assert b"old" in reader.read()
    assert store.get("ab12").prompt == b"new"


# ------------------------------------------------------------ keys


def pretraining(**config):
    return PretrainTask(config=TrialConfig().replace(config), dataset="dtd", seed=0)


def test_methods_views_and_splits_share_a_prompt():
    key = NAMES.key(pretraining())
    assert key == NAMES.key(pretraining(method="otpt", **{"adapt.lr": 0.1, "views.count": 3}))
    assert key == NAMES.key(evaluation(prompt="fpp", split="val").pretrain)
    assert key == NAMES.key(evaluation(prompt="fpp", split="test").pretrain)


def test_zero_shot_reads_neither_adaptation_nor_augmented_views():
    settings = {"adapt.lr": 0.5, "adapt.steps": 3, "views.count": 7, "views.min_area": 0.9}
    plain = evaluation(method="zero_shot")
    assert NAMES.key(plain) == NAMES.key(replace(plain, config=plain.config.replace(settings)))


EVALUATION = evaluation()


def set_to(**settings):
    """The same samples with dotted settings."""
    return replace(EVALUATION, config=EVALUATION.config.replace(settings))


OTHER_WORK = {
    "method": evaluation(method="ctpt"),
    "prompt": evaluation(prompt="a picture of a"),
    "pretrained": evaluation(prompt="fpp"),
    "learning rate": set_to(**{"adapt.lr": 0.1}),
    "precision": set_to(**{"adapt.precision": "autocast"}),
    "views": set_to(**{"views.count": 7}),
    "seed": evaluation(seed=1),
    "split": evaluation(split="test"),
    "dataset": evaluation(dataset="pets"),
    "start": evaluation(start=64, stop=128),
    "stop": evaluation(stop=128),
}


def test_work_that_may_differ_has_keys_of_its_own():
    keys = {name: NAMES.key(task) for name, task in OTHER_WORK.items()} | {"itself": NAMES.key(EVALUATION)}
    assert len(set(keys.values())) == len(keys), keys
    prompts = [pretraining(), pretraining(**{"fpp.gamma1": 3.0}), pretraining(init="a"), EVALUATION.pretrain]
    assert len({NAMES.key(task) for task in prompts}) == 4


@pytest.mark.parametrize(
    "other",
    [
        names_of(facts(), model="other weights"),
        names_of(facts(digest="another listing")),
        names_of(facts(classes=("striped", "dotted", "bare"))),
        names_of(facts(group="shifts")),
    ],
    ids=["model", "listing", "class names", "group"],
)
def test_another_model_or_other_data_mean_other_keys(other):
    ours = names_of(facts())
    assert other.key(EVALUATION) != ours.key(EVALUATION)


def test_a_prompt_depends_on_the_class_names_and_not_on_the_images():
    key = names_of(facts()).key(pretraining())
    assert names_of(facts(digest="another listing")).key(pretraining()) == key
    assert names_of(facts(classes=("striped", "dotted", "bare"))).key(pretraining()) != key
    assert names_of(facts(), model="other weights").key(pretraining()) != key
    assert names_of(facts(group="shifts")).key(pretraining()) != key  # its lambda is another


# ------------------------------------------------------------ cuts and sizes


@given(size=st.integers(1, 5000), wanted=st.none() | st.integers(1, 9))
def test_shards_are_the_whole_and_not_large_unless_asked_for(size, wanted):
    whole = evaluation(stop=size)
    parts = shards(whole, wanted)
    assert [sample for part in parts for sample in range(part.start, part.stop)] == list(range(size))
    if wanted is None:
        assert max(part.stop - part.start for part in parts) <= 1024
    else:
        assert len(parts) <= wanted


def test_larger_work_costs_more():
    assert cost(evaluation(stop=128), 10) > cost(evaluation(), 10) > cost(evaluation(), 5)
    assert cost(set_to(**{"adapt.steps": 2}), 10) > cost(evaluation(), 10)
    assert cost(evaluation(), 10) > cost(evaluation(method="zero_shot"), 10)
    assert cost(pretraining(**{"fpp.steps": 2000}), 10) > cost(pretraining(), 10)
    assert NAMES.cost(evaluation(dataset="pets")) == cost(evaluation(), 2)


def test_what_travels_needs_nothing_heavy():
    code = "import sys, fpp_sweep.trial.results, fpp_sweep.workers.keeper, fpp_sweep.trial.trial, fpp_sweep.search.study, json\n"
    code += "print(json.dumps(sorted({'torch', 'ray', 'optuna', 'numpy', 'mlflow'} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
