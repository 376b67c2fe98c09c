"""A key depends on everything that changes the bits of a result and on nothing else; tasks are cut into shards."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpp_sweep.spec import catalogue, config, keys, tasks
from fpp_sweep.spec.config import TrialConfig, preset
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.tasks import BATCH, SHARD, PretrainTask
from tests.kit.names import ASAM, CTPT, DYNAPROMPT, ENT_ENT, ENT_REG, OTPT, OTPT_SQUARED, REG_ENT, SAM, TPT, ZERO_SHOT
from tests.kit.rows import RUNNING_MEAN, registered
from tests.kit.tasks import KEYS, MODEL, dataset_info, evaluation, keys_of

WORDS, PRETRAINED = evaluation(), evaluation(prompt="fpp")
PROMPT = PretrainTask(config=PRETRAINED.config, dataset="dtd", seed=0)
VIEWS = {f"views.{name}" for name in ("count", "min_area", "max_area", "augmix", "flip")}
STEP = {f"adapt.{name}" for name in ("steps", "lr", "weight_decay", "optimizer", "view_fraction")} | VIEWS
ONCE, PENALTY = STEP - {"adapt.steps"} | {"adapt.keep_optimizer"}, {"adapt.penalty_weight"}
STREAM = STEP - {"adapt.steps", "adapt.optimizer"} | {"adapt.slots", "adapt.slot_rule", "adapt.order"}
SHARP = STEP | {"adapt.reselect"}
TEMPLATES = {"adapt.templates"}
VOTES = VIEWS | TEMPLATES | {"adapt.vote_fraction"}
CACHES = VIEWS | TEMPLATES | {f"adapt.{name}" for name in ("cache_alpha", "cache_beta", "view_fraction", "order")}
WEIGHED = {TPT: set(), CTPT: PENALTY, OTPT: PENALTY}
READS = {
    ZERO_SHOT: set(),
    **{name: STEP | weight for name, weight in WEIGHED.items()},
    **{SAM[name]: SHARP | weight | {"adapt.sam_rho"} for name, weight in WEIGHED.items()},
    **{ASAM[name]: SHARP | weight | {"adapt.asam_rho"} for name, weight in WEIGHED.items()},
    ENT_ENT: ONCE | {"adapt.reselect"},
    **{DYNAPROMPT[name]: STREAM | weight for name, weight in WEIGHED.items()},
    OTPT_SQUARED: STEP | PENALTY,
    **{name: ONCE | PENALTY for name in ENT_REG.values()},
    "zero_shot_ensemble": TEMPLATES,
    "zero": VOTES | {"adapt.vote_form"},
    "zero_mean": VOTES,
    "mta": VIEWS | TEMPLATES,
    "tda": CACHES,
    "boostadapter": CACHES | {"adapt.boost_delta", "adapt.boost_query"},
    "tps": VIEWS | TEMPLATES | {"adapt.shift_lr", "adapt.shift_form", "adapt.view_fraction"},
    "atpt": STEP | PENALTY,
    "atpt_released": STEP | PENALTY,
    "rtpt": STEP,
    "soc": STEP | PENALTY | {"adapt.huber_delta"},
    **{name: ONCE | PENALTY | {"adapt.reselect"} for name in REG_ENT.values()},
}
MEASURE = {f"measure.{name}" for name in ("rho", "norm", "views")}
PRETRAINING = {key for key in TrialConfig().flat() if key.startswith("fpp.")} | {"anchor_prompt"}
START = {"prompt", "precision"}


def different_value(key, value):
    """Return a value of a setting that differs from this one."""
    choices = config.setting(key).choices
    if value == "auto":
        choices = choices[::-1]  # `auto` may stand for the choice after it, which would then be no change
    for choice in choices:
        if choice != value:
            return choice
    if isinstance(value, str):
        return f"{value} small"
    if value is None and config.setting(key).kind == "text":
        return "simple"
    if isinstance(value, bool):
        return not value
    if value is None and config.setting(key).kind == "integer":
        return 9
    return value + 1 if isinstance(value, int) else (value or 1.0) / 2


def settings_that_change_the_key(task):
    """Return the settings that change a task's key."""
    settings = {key: different_value(key, value) for key, value in task.config.flat().items() if key != "method"}
    if task.config.templates:
        settings["adapt.templates"] = "simple"
    if isinstance(task, PretrainTask):
        del settings["adapt.templates"]  # a trial with templates has no pretraining
    changing = set()
    for key, value in settings.items():
        changed_task = replace(task, config=task.config.replace({key: value}))
        if KEYS.of(changed_task) != KEYS.of(task):
            changing.add(key)
    return changing


@pytest.mark.parametrize("method", READS)
def test_only_settings_that_a_method_reads_change_the_key(method):
    assert set(READS) == set(catalogue.METHODS)
    if catalogue.METHODS[method].templates:
        return  # a method with templates has no prompt
    assert settings_that_change_the_key(evaluation(method=method)) == READS[method] | START
    assert settings_that_change_the_key(evaluation(method=method, prompt="fpp")) == READS[method] | PRETRAINING | START
    assert settings_that_change_the_key(evaluation(method=method, prompt="fpp").pretrain) == PRETRAINING | START


@pytest.mark.parametrize(
    ("columns", "read"),
    [
        (("logits",), set()),
        (("sharpness",), MEASURE),
        (("product",), {"measure.views"}),
        (("logits", "product", "sharpness"), MEASURE),
    ],
)
def test_settings_of_sharpness_change_the_key_only_if_it_is_measured(columns, read):
    assert settings_that_change_the_key(evaluation(columns=columns)) == STEP | START | read


@pytest.mark.parametrize("prompt", ["a photo of a", "fpp"])
def test_templates_replace_the_prompt_in_keys(prompt):
    ensemble = evaluation(method="zero_shot_ensemble", prompt=prompt)
    assert ensemble.pretrain is None
    assert settings_that_change_the_key(ensemble) == TEMPLATES | {"precision"}
    voting = evaluation(method="zero", prompt=prompt, **{"adapt.templates": "openai"})
    assert settings_that_change_the_key(voting) == READS["zero"] | {"precision"}
    assert voting.pretrain is None


def test_keys_of_templates_depend_on_their_texts():
    def key_of(templates, dataset="dtd", digests=None):
        task = evaluation(dataset=dataset, method="zero_shot_ensemble", **{"adapt.templates": templates})
        return replace(KEYS, prompts=digests or {}).of(task)

    assert key_of(None) == key_of("openai")
    assert key_of("released") not in (key_of("simple"), key_of("openai"))  # dtd has its own template
    assert key_of("t.json", digests={"t.json": "1"}) != key_of("t.json", digests={"t.json": "2"})


def test_released_settings_of_a_dataset_are_part_of_the_key():
    """Two datasets with equal classes and sizes share an adapter only if the method's released settings are equal."""
    open_settings = evaluation(method="tda")
    released = {"adapt.cache_alpha": 2.0, "adapt.cache_beta": 3.0}  # the settings released for dtd
    same = replace(open_settings, config=open_settings.config.replace(released))
    other = replace(open_settings, config=open_settings.config.replace({**released, "adapt.cache_beta": 4.0}))
    assert KEYS.of_adapter(open_settings) == KEYS.of_adapter(same) != KEYS.of_adapter(other)
    assert KEYS.of(open_settings) == KEYS.of(same) != KEYS.of(other)


# Caches are stored under these digests: if one changes, users' results are computed anew.
STORED_KEYS = {
    "zero_shot": ("0f172b6ac7eae4480c17fd79", "abf68e90ea6e1478ebf57c97"),
    TPT: ("29f2915863801ebda9345d79", "a5fcd27886ba3738d3b1431e"),
    DYNAPROMPT[TPT]: ("4a8eb8ed607abe0caa7c7c78", "ffa2115cd227597b8561162d"),
    REG_ENT[OTPT]: ("d23beb5f118b19d484d825f6", "595253242992167f91e26a48"),
}
FEATURES = {"dataset": "dtd", "split": "val", "count": 64, "min_area": 0.08, "max_area": 1.0, "augmix": True}


def test_keys_change_only_on_purpose():
    for method, stored in STORED_KEYS.items():
        task = evaluation(method=method, prompt="fpp")
        assert (KEYS.of(task), KEYS.of_adapter(task)) == stored
    assert KEYS.of(PROMPT) == "ae56c68841c9f2489ecc1858"
    assert [keys.config_key(settings) for settings in (TrialConfig(), preset("tiny"))] == [
        "3afbd07e0108",
        "ceca53098c2b",
    ]
    features = {**FEATURES, "image_digest": "d", "flip": True, "seed": 0, "dtype": "float16", "compute": "float32"}
    assert keys.name_of_features(features) == "19e5272f460a2d72"


@pytest.mark.parametrize("method", STORED_KEYS)
def test_every_precision_has_its_own_key(method):
    tasks = [evaluation(method=method, prompt="fpp", precision=precision) for precision in ("float32", "tf32", "fp16")]
    gpu_keys = keys_of(dataset_info(), model=replace(MODEL, device="cuda:0"))
    for task_keys in (KEYS, gpu_keys):
        assert len({task_keys.of(task) for task in tasks}) == 3
        assert len({task_keys.of(task.pretrain) for task in tasks}) == 3
        assert len({task_keys.of_adapter(task) for task in tasks}) == 3


OTHER_WORK = {
    "itself": WORDS,
    "method": evaluation(method=CTPT),
    "pretrained": PRETRAINED,
    "seed": evaluation(seed=1),
    "split": evaluation(split="test"),
    "dataset": evaluation(dataset="pets"),
    "start": evaluation(start=64, stop=128),
    "stop": evaluation(stop=128),
    "columns": evaluation(columns=("logits",)),
    "prompt": PROMPT,
    "prompt of another seed": replace(PROMPT, seed=1),
    "prompt of another dataset": replace(PROMPT, dataset="pets"),
}


def test_tasks_with_different_results_have_different_keys():
    keys_by_name = {name: KEYS.of(task) for name, task in OTHER_WORK.items()}
    assert len(set(keys_by_name.values())) == len(keys_by_name), keys_by_name
    assert KEYS.of(evaluation(columns=("a", "b"))) == KEYS.of(evaluation(columns=("b", "a")))


BOTH = {WORDS, PROMPT}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"digest": "other weights"}, BOTH),
        ({"device": "cuda"}, BOTH),
        ({"arithmetic": "float32 features, 1 threads"}, BOTH),
        ({"name": "the same by another name"}, set()),
        ({"node": "there", "pid": 7}, set()),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else f"{len(value)} change",
)
def test_a_models_weights_device_and_arithmetic_are_part_of_the_key(change, changed):
    ours, other = keys_of(dataset_info()), keys_of(dataset_info(), model=replace(MODEL, **change))
    assert {task for task in BOTH if ours.of(task) != other.of(task)} == changed


def test_the_order_of_a_stream_is_part_of_the_key_only_if_the_method_reads_it():
    streams = [evaluation(method=DYNAPROMPT[TPT], **{"adapt.order": order}) for order in ("fair", "shuffled")]
    assert len({KEYS.of(task) for task in streams}) == 2
    with registered(RUNNING_MEAN):  # this method reads no order: its stream has the order of the dataset
        others = [evaluation(method="running_mean", **{"adapt.order": order}) for order in ("fair", "shuffled")]
        assert len({KEYS.of(task) for task in others}) == 1


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"digest": "other labels"}, {WORDS}),
        ({"images": "other images"}, {WORDS}),
        ({"size": 320}, {WORDS}),  # the number of images decides the form of the gradient
        ({"classes": ("striped", "dotted", "bare")}, BOTH),
        ({"group": "shifts"}, BOTH),  # the group decides lambda and the weights of penalties
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else f"{len(value)} change",
)
def test_a_prompts_key_depends_on_the_classes_and_an_evaluations_key_on_the_whole_dataset(change, changed):
    ours, other = keys_of(dataset_info()), keys_of(replace(dataset_info(), **change))
    assert {task for task in BOTH if ours.of(task) != other.of(task)} == changed


@pytest.mark.parametrize(("version", "changed"), [("ENGINE", {"of", "prompt", "of_adapter"}), ("VIEWS", {"of"})])
def test_versions_of_the_engine_and_of_views_are_part_of_the_key(monkeypatch, version, changed):
    def current_keys():
        fresh = replace(KEYS)  # keys are cached: a fresh object computes them again
        return {"of": fresh.of(WORDS), "prompt": fresh.of(PROMPT), "of_adapter": fresh.of_adapter(WORDS)}

    before = current_keys()
    monkeypatch.setattr(keys, version, 99)
    assert {name for name, key in current_keys().items() if key != before[name]} == changed


def test_an_edited_plugin_has_other_keys():
    task = evaluation(method="running_mean")
    found = []
    for digest in ("one", "two"):
        with registered(replace(RUNNING_MEAN, digest=digest)):
            fresh = replace(KEYS)
            found.append((fresh.of(task), fresh.of_adapter(task)))
    assert not set(found[0]) & set(found[1])


def test_methods_views_and_splits_share_a_prompt():
    others = [
        evaluation(prompt="fpp", method=OTPT, **{"adapt.lr": 0.1, "views.count": 3}),
        evaluation(prompt="fpp", split="test", columns=("logits",)),
    ]
    assert {KEYS.of(task.pretrain) for task in others} == {KEYS.of(PROMPT)}


def test_only_shards_of_one_dataset_share_an_adapter():
    shards = [WORDS, evaluation(start=64, stop=128), evaluation(columns=("logits",))]
    assert {KEYS.of_adapter(task) for task in shards} == {KEYS.of_adapter(WORDS)}
    others = [
        task for name, task in OTHER_WORK.items() if not name.startswith(("prompt", "start", "stop", "columns", "seed"))
    ]
    others += [evaluation(**{"adapt.lr": 0.1}), evaluation(prompt="a picture of a")]
    assert len({KEYS.of_adapter(task) for task in others}) == len(others)


# ------------------------------------------------------------ shards and costs


@given(start=st.integers(0, 500), size=st.integers(1, 5000), wanted=st.none() | st.integers(1, 40))
def test_shards_cover_the_task_in_order_and_have_a_limited_size(start, size, wanted):
    parts = evaluation(start=start, stop=start + size, columns=("logits",)).shards(wanted)
    assert [parts[0].start, parts[-1].stop] == [start, start + size]
    assert all(first.stop == second.start for first, second in pairwise(parts))
    assert all(part.start % BATCH == 0 for part in parts[1:])
    assert {part.columns for part in parts} == {("logits",)}
    batches = {-(-part.stop // BATCH) - part.start // BATCH for part in parts}
    assert max(batches) - min(batches) <= 1
    if wanted is None:
        assert max(part.stop - part.start for part in parts) <= SHARD + BATCH * bool(start % BATCH)
    else:
        assert len(parts) <= wanted


@given(size=st.integers(1, 5000), shard=st.sampled_from([64, 128, 1024]))
def test_the_shards_of_a_stateful_stream_form_a_chain(size, shard):
    with registered(RUNNING_MEAN), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "SHARD", shard)
        for prompt in ("a photo of a", "fpp"):
            chain = evaluation(stop=size, method="running_mean", prompt=prompt, columns=("logits",)).shards()
            assert [(part.start, part.stop) for part in chain] == [
                (start, min(start + shard, size)) for start in range(0, size, shard)
            ]
            assert [part.previous for part in chain] == [None, *chain[:-1]]
            for part in chain:
                assert part.needs == tuple(task for task in (part.pretrain, part.previous) if task)


def test_importing_tasks_keys_and_the_scheduler_loads_no_torch():
    heavy = {"torch", "ray", "optuna", "mlflow"}
    for modules, refused in (
        ("fpp_sweep.spec.keys", heavy | {"numpy"}),
        ("fpp_sweep.workers.scheduler, fpp_sweep.trial.trial", heavy),
    ):
        code = f"import json, sys, {modules}; print(json.dumps(sorted({refused} & set(sys.modules))))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == []


def test_the_key_of_a_prompt_file_depends_on_its_content():
    task = evaluation(prompt="mine.safetensors")
    before, same, edited = (
        TaskKeys(MODEL, KEYS.datasets, {"mine.safetensors": digest}) for digest in ("0123", "0123", "4567")
    )
    assert before.of(task) == same.of(task) != edited.of(task)
    assert before.of_adapter(task) != edited.of_adapter(task)


def test_the_number_of_the_gpu_is_not_part_of_the_key():
    one, other = (keys_of(dataset_info(), model=replace(MODEL, device=device)) for device in ("cuda:0", "cuda:1"))
    assert one.of(WORDS) == other.of(WORDS)
