"""What a sweep checks before it starts, with a real worker in this process; the rest is in test_tune.py."""

from dataclasses import replace

import pytest

from fpp_sweep.core.prompt import open_prompt, save_prompt
from fpp_sweep.errors import InputError
from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep.run import Sweep, check, make_plan, with_facts, worker_spec
from fpp_sweep.trial.worker import Worker
from tests.sweeps import build_sweep

SPACE = "params: {fpp.gamma1: {low: 0.1, high: 10}}\nwork: {datasets: [scenes, digits], limit: 5}"


def space(*overrides):
    return parse_space(SPACE, "space.yaml", overrides)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    asked = space(f"work.cache={tmp_path_factory.mktemp('cache')}")
    return Worker(worker_spec(asked, gpus=0.0))


def test_a_plan_holds_the_datasets_of_both_splits(worker):
    plan = make_plan(space(), worker)
    assert {part: [facts.name for facts in datasets] for part, datasets in plan.datasets.items()} == {
        "val": ["scenes", "digits"],
        "test": ["scenes", "digits"],
    }
    assert {facts.size for datasets in plan.datasets.values() for facts in datasets} == {5}
    assert plan.datasets["val"][0].digest != plan.datasets["test"][0].digest


def test_a_search_on_the_test_split_opens_no_other(worker):
    assert list(make_plan(space("search.split=test"), worker).datasets) == ["test"]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("work.datasets=[scenes, scenez]", "did you mean 'scenes'"),
        ("work.datasets=[scenes, dtd]", "dtd: "),
        ("objectives=[{metric: ece/letters}]", "'letters'"),
        ("constraints=[{metric: accuracy/letters, at_least: 3}]", "'letters'"),
    ],
)
def test_a_dataset_that_is_not_there_is_told(worker, override, complaint):
    with pytest.raises(InputError) as error:
        make_plan(space(override), worker)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["base.init=nowhere.pt"], "nowhere.pt"),
        (["base.prompt=nowhere.safetensors"], "nowhere.safetensors"),
        (["params.prompt=[fpp, gone.pt]"], "gone.pt"),
        (["base.init=fpp"], "FPP needs words"),
        (["base.method=tpd"], "did you mean"),
    ],
)
def test_a_prompt_or_method_that_is_not_there_is_told(worker, overrides, complaint):
    def begin():
        asked = space(*overrides)
        check(asked, worker, make_plan(asked, worker))

    with pytest.raises(InputError) as error:
        begin()
    assert complaint in str(error.value)


def test_words_that_the_embedded_model_never_saw_are_worth_a_note(worker):
    asked = space("base.init=quixotic zeppelins")
    (note,) = check(asked, worker, make_plan(asked, worker)).notes
    assert "quixotic" in note
    assert "never saw" in note


def test_a_sweep_goes_on_with_the_model_the_data_and_the_prompts_that_it_began_with(worker, tmp_path):
    file = tmp_path / "prompt.safetensors"
    asked = space(f"base.prompt={file}")
    model, plan = worker.facts(), make_plan(asked, worker)
    info = build_sweep(tmp_path / "made", trials=1).info()
    info = replace(info, tags={})

    def opened(words, *, model=model, info=info):
        save_prompt(open_prompt(worker.clip, words), worker.clip, file, {})
        return with_facts(info, asked, model, plan, check(asked, worker, plan))

    began = opened("a photo of a")
    assert opened("a photo of a", info=began) == began
    with pytest.raises(InputError, match="a prompt file differs"):
        opened("a picture of a", info=began)
    with pytest.raises(InputError, match="tiny has other weights"):
        opened("a photo of a", info=began, model=replace(model, digest="another"))
    with pytest.raises(InputError, match="its data differ"):
        opened("a photo of a", info=replace(began, tags={**began.tags, "datasets_digest": "others"}))


def test_a_sweeps_folder_is_read_as_a_table_and_a_front(tmp_path):
    sweep = Sweep.open(build_sweep(tmp_path / "made", trials=6, failed=(3,)).path)
    rows = {row["name"]: row for row in sweep.table()}
    assert len(rows) == len(sweep.trials())
    assert rows["trial-0003"]["state"] == "failed"
    assert "ece" not in rows["trial-0003"]
    members = sweep.front()
    assert members
    assert sweep.best("knee").key() in {member.key for member in members}
    with pytest.raises(InputError, match="has no 'best f1'; it has best accuracy"):
        sweep.best("best f1")


def test_what_is_no_sweep_is_not_opened(tmp_path):
    with pytest.raises(InputError, match="not a sweep's folder"):
        Sweep.open(tmp_path)
