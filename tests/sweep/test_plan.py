"""Plans: the datasets and prompts that workers open and check, and the inputs that a resume must find unchanged."""

from dataclasses import replace

import pytest

from fpp_sweep.core.prompt import open_prompt, prompt_bytes
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import TextSource, Validation
from fpp_sweep.sweep.plan import check_plan, make_plan, validate
from fpp_sweep.sweep.sweep_record import with_inputs
from fpp_sweep.sweep.worker_pool import worker_spec
from fpp_sweep.trial.worker import Worker
from tests.kit.datasets import build_folders
from tests.kit.records import sweep_info
from tests.kit.spaces import SEARCH_VIEWS, small_space


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    return Worker(worker_spec(small_space(f"work.cache={tmp_path_factory.mktemp('cache')}"), gpus=0.0))


@pytest.mark.parametrize("setting", ["base.precision=tf32", "params.precision=[float32, tf32]"])
def test_a_worker_refuses_a_precision_that_its_device_lacks(worker, setting):
    requested = small_space(setting, "work.gpus_per_worker=0")
    line = "precision tf32: needs a GPU with compute capability 8.0 or later, this is a cpu; use float32"
    with pytest.raises(InputError, match=line):
        validate(requested, Worker(worker_spec(requested, gpus=0.0)), make_plan(requested, worker))


def test_a_plan_has_the_datasets_of_both_splits(worker):
    plan = make_plan(small_space(), worker)
    names = {split: [dataset.name for dataset in datasets] for split, datasets in plan.datasets.items()}
    assert names == {"val": ["scenes", "digits"], "test": ["scenes", "digits"]}
    assert {dataset.size for datasets in plan.datasets.values() for dataset in datasets} == {5}
    assert plan.datasets["val"][0].digest != plan.datasets["test"][0].digest


def test_maps_of_the_test_split_open_the_validation_split(worker):
    maps = "work.posthoc=[none, isotonic, temperature_val]"
    requested = small_space("search.split=test", maps, "search.evaluate_only=true")
    assert requested.work.posthoc == ("isotonic", "temperature_val")
    with pytest.raises(InputError, match="scenes, split val: 5 images are too few for a post-hoc map, which needs 50"):
        make_plan(requested, worker)
    assert list(make_plan(small_space("search.split=test", "work.posthoc=[temperature_oracle]"), worker).datasets) == [
        "test"
    ]


def test_an_objective_of_conformal_sets_opens_the_validation_split_and_needs_images(worker):
    requested = small_space("search.split=test", "objectives=[accuracy, lac_90_size]")
    assert requested.columns() == ("lac_90",)
    assert [objective.goal for objective in requested.objectives] == ["max", "min"]
    line = "scenes, split val: 5 images are too few for a conformal threshold, which needs 50"
    with pytest.raises(InputError, match=line):
        make_plan(requested, worker)
    kept = small_space("search.split=test", "work.columns=[aps_95]", "work.datasets=[scenes]", "work.limit=50")
    plan = make_plan(kept, Worker(worker_spec(kept, gpus=0.0)))
    assert (list(plan.datasets), plan.conformal) == (["test", "val"], ["aps_95"])
    (shards,) = plan.tasks(kept.start(), "test").values()
    assert {task.columns for task in shards} == {("logits",)}


def test_a_transfer_needs_another_dataset(tmp_path):
    requested = small_space("work.posthoc=[temperature_transfer]", "work.datasets=[scenes]", "work.limit=50")
    line = "work.posthoc: temperature_transfer needs the logits of another dataset; add one"
    with pytest.raises(InputError, match=line):
        make_plan(requested, Worker(worker_spec(requested, gpus=0.0)))


def test_a_dataset_without_a_validation_split_has_no_fitted_map(tmp_path, worker):
    for split in ("train", "test"):
        build_folders(tmp_path / "own" / split, ("cat", "dog"))
    requested = small_space(f"work.datasets=['own={tmp_path}/own']", "search.split=test", "work.posthoc=[isotonic]")
    with pytest.raises(InputError, match=r"own: .* has no val split, only train, test"):
        make_plan(requested, Worker(worker_spec(requested, gpus=0.0)))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["base.anchor_prompt=nowhere.pt"], "nowhere.pt"),
        (["base.prompt=nowhere.safetensors", SEARCH_VIEWS], "nowhere.safetensors"),
        (["base.anchor_prompt=fpp"], "must be words or a prompt file"),
    ],
)
def test_an_unknown_or_missing_prompt_is_refused_by_name(worker, overrides, complaint):
    def open_and_validate():
        requested = small_space(*overrides)
        validate(requested, worker, make_plan(requested, worker))

    with pytest.raises(InputError) as error:
        open_and_validate()
    assert complaint in str(error.value)


class RecordingInspector:
    """An inspector that records the prompts that it should check."""

    def check(self, prompts, datasets):
        self.prompts = prompts
        return Validation()


WORDS = TextSource("a photo of a")  # the prompt of the baselines
BLOCKS = "grid:\n- {anchor_prompt: [m.pth, a photo], prompt: [fpp]}\n- {anchor_prompt: [x], prompt: [n.pth]}"


@pytest.mark.parametrize(
    ("searched", "expected"),
    [
        ("params: {fpp.gamma1: {low: 0.1, high: 10}}", {WORDS}),
        ("params: {fpp.gamma1: [1, 2]}\nbase: {anchor_prompt: m.pth}", {TextSource("m.pth")}),
        ("params: {prompt: [fpp, x.pt]}", {WORDS, TextSource("x.pt")}),
        (
            "params: {method: [tpt, otpt], anchor_prompt: {choices: [m.pth, a photo], when: {method: otpt}}}",
            {WORDS, TextSource("m.pth"), TextSource("a photo")},
        ),
        ("params: {method: [tpt, zero]}", {WORDS}),
        ("params: {method: [tpt, zero], adapt.templates: [none, t.json]}", {WORDS, TextSource("", templates="t.json")}),
        ("grid: [{method: [zero_shot_ensemble]}]", {WORDS, TextSource("", templates="openai")}),
        (BLOCKS, {WORDS, TextSource("m.pth"), TextSource("a photo"), TextSource("n.pth")}),
    ],
)
def test_every_prompt_that_a_trial_may_start_from_is_checked(worker, searched, expected):
    requested = parse_space(f"{searched}\nwork: {{datasets: [scenes], limit: 5}}", "space.yaml", ())
    inspector = RecordingInspector()
    validate(requested, inspector, make_plan(requested, worker))
    assert set(inspector.prompts) == expected


def test_a_resumed_sweep_needs_the_model_the_data_and_the_prompts_of_its_start(worker, tmp_path):
    file = tmp_path / "prompt.safetensors"
    requested = small_space(f"base.prompt={file}", SEARCH_VIEWS)
    model, plan = worker.model_info(), make_plan(requested, worker)

    def inputs_on_record(words, info, model=model):
        file.write_bytes(prompt_bytes(open_prompt(worker.clip, words), worker.clip, {}))
        validation = validate(requested, worker, plan)
        return with_inputs(info, model, plan.datasets_by_key().values(), validation)

    started = inputs_on_record("a photo of a", replace(sweep_info(name="sweep"), model=""))
    assert inputs_on_record("a photo of a", started) == started
    with pytest.raises(InputError, match=r"a prompt file has other content \(.*\) than when it began"):
        inputs_on_record("a picture of a", started)
    with pytest.raises(InputError, match="tiny has other weights"):
        inputs_on_record("a photo of a", started, replace(model, digest="another"))
    with pytest.raises(InputError, match=r"it has other images or class names \(digits val\) than when it began"):
        inputs_on_record("a photo of a", replace(started, digests={**started.digests, "digits val": "another"}))


def test_a_resumed_sweep_needs_the_data_of_all_splits_of_its_start(worker):
    requested = small_space("search.finalists.seeds=2")
    plan, validation = check_plan(requested, worker)
    datasets = plan.datasets_by_key()
    assert {split for _, split in datasets} == {"val", "test", "val:10"}

    def open_inputs(info, datasets):
        return with_inputs(info, worker.model_info(), datasets.values(), validation)

    started = open_inputs(replace(sweep_info(name="sweep"), model=""), datasets)
    for split in ("val", "test", "val:10"):
        key = "scenes", split
        changed = {**datasets, key: replace(datasets[key], digest="another")}
        with pytest.raises(InputError, match=rf"class names \(scenes {split}\) than"):
            open_inputs(started, changed)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["params.fpp.gamma1=[1, 2]"], ["fpp.gamma1, fpp.gamma2: no effect on digits, where lambda is 1.25"]),
        (["base.fpp.lambda_shifts=none"], []),
        (["params.fpp.lambda_shifts=[1.25, 2]"], []),
    ],
)
def test_a_search_for_lambda_where_it_is_fixed_causes_a_note(worker, settings, expected):
    requested = small_space("params.fpp.gamma2=[0.15, 15]", *settings)
    plan = make_plan(requested, worker)
    assert not any("no effect" in note for note in validate(requested, worker, plan).notes)
    scenes, digits = plan.datasets["val"]
    with_a_shift = replace(plan, datasets={"val": (scenes, replace(digits, group="shifts"))})
    notes = [note for note in validate(requested, worker, with_a_shift).notes if "no effect" in note]
    assert [note.partition(";")[0] for note in notes] == expected
