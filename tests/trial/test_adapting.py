"""Shards give the same bits as the whole; prompts and random streams depend only on names and seeds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.core.metrics import concatenate, score
from fpp_sweep.spec import tasks
from fpp_sweep.spec.config import AdaptConfig, FppConfig, TrialConfig, ViewConfig
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.trial.adapting import evaluate, make_adapter, pack_state, with_state
from fpp_sweep.trial.prompts import flatness_weight, make_prompt
from tests.kit.models import random_clip
from tests.kit.rows import RUNNING_MEAN, RunningMean, registered
from tests.kit.tasks import same_predictions

CLIP = random_clip()
DIGITS = open_dataset("digits", "test").head(200)
CONFIG = TrialConfig(prompt="a photo of a", fpp=FppConfig(steps=4, draws=2), views=ViewConfig(count=4, augmix="off"))
TASK = EvalTask(config=CONFIG, dataset="digits", split="test", seed=0, start=0, stop=200)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    cache = FeatureCache(tmp_path_factory.mktemp("cache"))
    return cache.features(CLIP, DIGITS, CONFIG.views, 0)


def adapter_for(config):
    prompt = make_prompt(CLIP, PretrainTask(config=config, dataset="digits", seed=0), DIGITS)
    return make_adapter(CLIP, config, DIGITS, prompt)


def predictions(features, *tasks):
    adapter = adapter_for(tasks[0].config)
    return concatenate([evaluate(CLIP, task, DIGITS, features, adapter)[0] for task in tasks])


@settings(max_examples=4, deadline=None)
@given(shards=st.integers(2, 20))
def test_any_sharding_gives_the_same_bits(features, shards):
    whole, joined = predictions(features, TASK), predictions(features, *TASK.shards(shards))
    assert same_predictions(joined, whole)
    assert score(joined) == score(whole)


def test_a_shard_needs_only_the_features_of_its_samples(features, tmp_path):
    part = TASK.shards(3)[1]
    cache = FeatureCache(tmp_path)
    own = cache.features(CLIP, DIGITS, CONFIG.views, 0, samples=range(part.start, part.stop))
    assert np.array_equal(predictions(own, part).confidence, predictions(features, part).confidence)


def pretrained_prompt(seed=0, dataset="digits", **changes):
    config = replace(CONFIG, prompt="fpp", fpp=replace(CONFIG.fpp, **changes))
    return make_prompt(CLIP, PretrainTask(config=config, dataset=dataset, seed=seed), DIGITS)


def test_a_prompt_depends_on_seed_and_dataset_and_nothing_else():
    torch.manual_seed(1)
    first = pretrained_prompt()
    torch.manual_seed(2)
    assert torch.equal(first.context, pretrained_prompt().context)
    assert not torch.equal(first.context, pretrained_prompt(seed=1).context)
    assert not torch.equal(first.context, pretrained_prompt(dataset="letters").context)


def test_classes_may_come_from_gaussian_tokens():
    assert not torch.equal(pretrained_prompt(class_source="gaussian").context, pretrained_prompt().context)


@pytest.mark.nightly
@pytest.mark.slow  # encodes the thousand class names of ImageNet
def test_classes_may_come_from_imagenet():
    from_imagenet = pretrained_prompt(class_source="imagenet", steps=1, draws=1)
    from_dataset = pretrained_prompt(steps=1, draws=1)
    assert not torch.equal(from_imagenet.context, from_dataset.context)


def test_logits_are_stored_on_request_and_give_the_probabilities(features):
    with_logits = predictions(features, replace(TASK, columns=("logits",)))
    logits = torch.from_numpy(with_logits.columns["logits"])
    assert logits.shape == (len(DIGITS), len(DIGITS.classes))
    assert np.array_equal(logits.softmax(-1).max(-1).values.numpy(), with_logits.confidence)
    assert same_predictions(replace(with_logits, columns={}), predictions(features, TASK))


MEASURED = replace(TASK, columns=("product", "sharpness"), config=replace(CONFIG, views=ViewConfig(count=4)))


@pytest.mark.parametrize("shards", [2, 4])
def test_any_sharding_measures_the_same_bits(features, shards):
    whole, joined = predictions(features, MEASURED), predictions(features, *MEASURED.shards(shards))
    for column in MEASURED.columns:
        assert np.array_equal(whole.columns[column], joined.columns[column])


def test_sharpness_is_measured_in_units_of_the_models_embeddings(features):
    larger = replace(CLIP, embedding_scale=2.0)
    config = replace(CONFIG, adapt=replace(CONFIG.adapt, steps=0))
    short, long = (replace(MEASURED, config=config.replace({"measure.rho": rho})) for rho in (0.05, 0.1))
    adapter = adapter_for(config)
    assert np.array_equal(
        evaluate(larger, short, DIGITS, features, adapter)[0].columns["sharpness"],
        evaluate(CLIP, long, DIGITS, features, adapter)[0].columns["sharpness"],
    )


@pytest.mark.parametrize("shard", [64, 128])
def test_a_stateful_method_continues_from_the_stored_state_of_the_previous_shard(features, monkeypatch, shard):
    """The state is stored as bytes between shards; the cached adapter keeps the state of the stream's start."""
    monkeypatch.setattr(tasks, "SHARD", shard)
    with registered(RUNNING_MEAN):
        task = replace(TASK, config=replace(CONFIG, method="running_mean"))
        adapter = adapter_for(task.config)
        initial_state = pack_state(adapter)
        state, parts = None, []
        for part in task.shards():
            previous = with_state(adapter, state) if state else adapter
            part_predictions, after = evaluate(CLIP, part, DIGITS, features, previous)
            state = pack_state(after)
            parts.append(part_predictions)
        assert pack_state(adapter) == initial_state != state
        assert same_predictions(concatenate(parts), predictions(features, task))
        each_shard_from_the_initial_state = predictions(features, *task.shards())
        assert not same_predictions(each_shard_from_the_initial_state, concatenate(parts))


def test_a_stateless_method_stores_no_state():
    assert pack_state(adapter_for(CONFIG)) is None


@pytest.mark.parametrize(
    ("group", "changes", "weight"),
    [
        ("fine_grained", {}, 1 + 15 / 10),
        ("shifts", {}, 1.25),
        ("shifts", {"lambda_shifts": None}, 1 + 15 / 10),
        ("fine_grained", {"lambda_classes": "source"}, 1 + 15 / 1000),
        ("fine_grained", {"gamma1": 2.0, "gamma2": 0.15}, 2 + 0.15 / 10),
    ],
)
def test_lambda_depends_on_the_dataset(group, changes, weight):
    config = TrialConfig(fpp=FppConfig(**changes))
    assert flatness_weight(config, replace(DIGITS, group=group), 1000) == pytest.approx(weight)


def test_a_setting_that_a_method_does_not_say_it_reads_has_its_default():
    """It is not in the keys of tasks, so that a result would serve tasks with other values."""
    row = replace(RUNNING_MEAN, name="reader", build=SettingsReader, reads=("adapt.slots",))
    adapt = AdaptConfig(view_fraction=0.5, slots=3)
    with registered(row):
        adapter = adapter_for(replace(CONFIG, method="reader", adapt=adapt))
    assert adapter.method.adapt.slots == 3
    assert adapter.method.adapt.view_fraction == AdaptConfig().view_fraction


class SettingsReader(RunningMean):
    """A method that keeps the settings that it is given."""

    def __init__(self, adapt, **unread):
        self.adapt = adapt
