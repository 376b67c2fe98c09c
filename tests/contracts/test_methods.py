"""The contract that every method of the catalogue must meet; these tests cover new rows without further code."""

import re
from dataclasses import fields, replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from fpp_sweep.core.compute import computing
from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.base import ZeroShot
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import METHODS, MethodRow
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.testing import check_method
from tests.kit.names import ASAM, CTPT, ENT_ENT, ENT_REG, OTPT, OTPT_SQUARED, REG_ENT, SAM, TPT, ZERO_SHOT
from tests.kit.rows import RUNNING_MEAN, RunningMean, registered
from tests.kit.texts import twins
from tests.reference import family, naive

PAIR = twins()
ENSEMBLE = PAIR.model.features(PAIR.context.flip(0))  # features that stand for the class vectors of templates
CPU = torch.device("cpu")
PENALTIES = {CTPT: naive.dispersion, OTPT: naive.householder}  # penalties of the methods that add one to TPT
ROWS = [*METHODS.values(), RUNNING_MEAN]
EPISODIC = [row.name for row in ROWS if row.learns and not row.stateful]
STEPPING = [row.name for row in ROWS if row.learns and "adapt.steps".startswith(row.reads)]
AVERAGED_OVER_VIEWS = {"rtpt"}  # methods that average all views, so that zero steps do not give zero-shot predictions
VOTING = {"zero"}  # shares of votes take few values, so that rounding does not change most probabilities
WITHOUT_PENALTY = {  # by method with a penalty: the same method without one
    CTPT: TPT,
    OTPT: TPT,
    SAM[CTPT]: SAM[TPT],
    SAM[OTPT]: SAM[TPT],
    ASAM[CTPT]: ASAM[TPT],
    ASAM[OTPT]: ASAM[TPT],
}


def _naive_forms():
    """Yield the naive reference of every episodic method."""
    for name in (TPT, *PENALTIES):
        penalty = PENALTIES.get(name)
        yield name, partial(naive.adapt_one, penalty=penalty)
        yield SAM[name], partial(naive.adapt_sharpness_aware, rho=0.05, penalty=penalty)
        yield ASAM[name], partial(naive.adapt_sharpness_aware, rho=0.5, adaptive=True, penalty=penalty)
    yield OTPT_SQUARED, partial(naive.adapt_one, penalty=naive.squared_gram)
    yield ENT_ENT, partial(naive.adapt_two_steps, order=("ent", "ent"))
    yield "atpt", partial(naive.adapt_one, penalty=family.growing_angle)
    yield "atpt_released", partial(naive.adapt_one, penalty=family.nearest_angle)
    yield "soc", partial(naive.adapt_one, penalty=family.huber)
    yield "rtpt", family.adapt_rtpt
    for name, penalty in PENALTIES.items():
        yield ENT_REG[name], partial(naive.adapt_two_steps, order=("ent", "reg"), penalty=penalty)
        yield REG_ENT[name], partial(naive.adapt_two_steps, order=("reg", "ent"), penalty=penalty)


NAIVE = dict(_naive_forms())

every_method = pytest.mark.parametrize("name", [row.name for row in ROWS])


@pytest.fixture(autouse=True, scope="module")
def _stateful():
    """Add a stateful method to the built-in methods."""
    with registered(RUNNING_MEAN):
        yield


def predict(name, *batches, group="fine_grained", **settings):
    """Return the logits of a stream of batches; with templates, the model has class vectors of an ensemble."""
    method = build_method(name, AdaptConfig(**settings), group)
    model = PAIR.model
    if METHODS[name].templates_of(settings.get("templates")) and "templates" in settings:
        model = replace(model, ensemble=ENSEMBLE)
    state = method.start(model, PAIR.context, sum(map(len, batches)))
    logits = []
    for views in batches:
        actual, state = method.predict(model, state, views)
        logits.append(actual)
    return torch.cat(logits)


@pytest.mark.parametrize("name", [name for name in STEPPING if name not in AVERAGED_OVER_VIEWS])
def test_zero_steps_equal_zero_shot(name):
    views = PAIR.views(3, 8)
    torch.testing.assert_close(predict(name, views, steps=0), predict(catalogue.ZERO_SHOT, views), atol=1e-4, rtol=0)


@every_method
def test_a_method_reads_no_more_views_than_its_row_says(name):
    views = PAIR.views(3, 8)
    assert torch.equal(predict(name, views), predict(name, views[:, : METHODS[name].views]))


OTHER_VALUES = {  # by setting: values that differ from the default
    "steps": [3], "lr": [0.5], "weight_decay": [0.9], "view_fraction": [0.5], "penalty_weight": [7.0],
    "sam_rho": [0.2], "asam_rho": [2.0], "optimizer": ["sgd"], "reselect": ["on", "off"], "keep_optimizer": [False],
    "slots": [3], "slot_rule": ["corrected", "described"], "order": ["shuffled"],
    "vote_form": ["released"], "vote_fraction": [0.6], "cache_alpha": [9.0], "cache_beta": [9.0],
    "boost_delta": [0, 9], "boost_query": ["views"], "shift_lr": [0.5], "shift_form": ["shared"], "huber_delta": [0.05],
    "templates": ["simple"],
}  # fmt: skip


@every_method
def test_a_row_names_the_settings_that_its_results_depend_on(name):
    """Keys of cached results consist of these settings: if one is missing, a wrong result is a cache hit."""
    assert OTHER_VALUES.keys() == {field.name for field in fields(AdaptConfig)}
    row, views = METHODS[name], PAIR.views(6, 64)
    default_logits = predict(name, views)
    changing, declared = set(), set()
    for key, values in OTHER_VALUES.items():
        if any(not torch.equal(predict(name, views, **{key: value}), default_logits) for value in values):
            changing.add(key)
        if f"adapt.{key}".startswith(row.reads):
            declared.add(key)
    if row.ordered:
        changing.add("order")  # this setting acts on the stream and is tested in tests/trial/test_streams.py
    assert changing == declared


@pytest.mark.parametrize("name", WITHOUT_PENALTY)
def test_weight_zero_equals_no_penalty(name):
    views = PAIR.views(3, 8)
    torch.testing.assert_close(
        predict(name, views, penalty_weight=0.0), predict(WITHOUT_PENALTY[name], views), atol=1e-4, rtol=0
    )


# By number of steps (None: the method takes no steps). Each normalised step amplifies rounding, which differs between
# processors: with AVX2, a difference of 1.8e-4 was measured after three steps.
NAIVE_TOLERANCE = {None: 1e-4, 1: 1e-4, 3: 5e-4}


def adaptations():
    """Yield every episodic method with a group of datasets and a number of steps; a group only chooses the weight."""
    for name in EPISODIC:
        yield name, "shifts", 1 if name in STEPPING else None
        if name in STEPPING:
            yield name, "fine_grained", 3


@pytest.mark.parametrize(("name", "group", "steps"), list(adaptations()))
def test_probabilities_equal_the_naive_reference(name, group, steps):
    views = PAIR.views(4, 64)
    row = METHODS[name]
    naive_settings = {} if steps is None else {"steps": steps}
    actual = predict(name, views, group=group, **naive_settings).softmax(-1)
    for sample, probabilities in zip(views, actual, strict=True):
        expected = NAIVE[name](
            PAIR.naive,
            PAIR.token_ids,
            PAIR.context,
            sample,
            logit_scale=PAIR.logit_scale,
            weight=row.weight if group == "fine_grained" else row.weight_on_shifts,
            **naive_settings,
        )
        torch.testing.assert_close(probabilities, expected.probabilities, atol=NAIVE_TOLERANCE[steps], rtol=0)


def test_zero_shot_equals_the_naive_reference():
    views = PAIR.views(6, 4)
    actual = predict(ZERO_SHOT, views).softmax(-1)
    expected = [
        naive.zero_shot(PAIR.naive, PAIR.token_ids, PAIR.context, sample, logit_scale=PAIR.logit_scale)
        for sample in views
    ]
    torch.testing.assert_close(actual, torch.stack(expected), atol=1e-5, rtol=0)


def test_published_penalty_weights_depend_on_the_group_of_datasets():
    assert (METHODS[CTPT].weight, METHODS[CTPT].weight_on_shifts) == (50, 20)
    assert (METHODS[OTPT].weight, METHODS[OTPT].weight_on_shifts) == (18, 2)
    assert build_method(OTPT, AdaptConfig(), "shifts").weight == 2
    assert build_method(OTPT, AdaptConfig(penalty_weight=7.0), "shifts").weight == 7


def test_an_unknown_method_suggests_the_nearest_name():
    with pytest.raises(InputError, match=f"unknown method '{CTPT[:-1]}', did you mean '{CTPT}'"):
        catalogue.method(CTPT[:-1])


@pytest.mark.parametrize("name", EPISODIC)
def test_fp16_changes_the_adaptation_step(name):
    """Rounding to half precision changes the sign of some coordinates of AdamW's first step.

    The changed signs depend on the processor, and with a large penalty they are few, so several draws of views are
    tried. Sums of float32 in another order change contexts by 1e-8 only.
    """

    def contexts(precision, views):
        # A new optimizer in the second step makes that step depend on signs, too.
        method = build_method(name, AdaptConfig(keep_optimizer=False), "fine_grained")
        with computing(precision, CPU):
            return method.adapt_contexts(PAIR.model, method.start(PAIR.model, PAIR.context, len(views)), views)

    for seed in range(12):
        views = PAIR.views(16, 64, seed)
        if (contexts("fp16", views) - contexts("float32", views)).abs().max() > AdaptConfig().lr:
            return
    pytest.fail("rounding to half precision changed no sign of a step")


@pytest.mark.parametrize("name", EPISODIC)
def test_fp16_changes_the_prediction(name):
    views = PAIR.views(16, 64)
    contexts = PAIR.context.expand(len(views), -1, -1)
    method = build_method(name, AdaptConfig(), "fine_grained")
    with computing("fp16", CPU):
        half = method.classify(PAIR.model, contexts, views)
    assert 1e-3 < (half - method.classify(PAIR.model, contexts, views)).abs().max() < 0.1
    assert torch.equal(half, half.half().float())


@every_method
def test_fp16_probabilities_are_close_to_float32(name):
    views = PAIR.views(16, 64)
    exact = predict(name, views).softmax(-1)
    with computing("fp16", CPU):
        near = predict(name, views).softmax(-1)
    moved = (near - exact).abs().median()
    assert moved < 0.01
    assert (moved > 0) == (name not in VOTING)
    assert (near.argmax(-1) == exact.argmax(-1)).float().mean() > 0.8


# ------------------------------------------------------------ the check that the tests of plugins call


class BrokenMethods:
    """Methods each of which breaks one rule of the contract; the docstring is the beginning of the error."""

    class TooFewClasses(ZeroShot):
        """logits have shape (4, 2), must be (4, 3)"""

        def predict(self, model, state, views):
            return state.logits(views[:, :1])[:, 0, :2], state

    class NotFinite(ZeroShot):
        """logits are not finite"""

        def predict(self, model, state, views):
            return state.logits(views[:, :1])[:, 0] / 0, state

    class WithGradients(ZeroShot):
        """its logits need gradients"""

        def predict(self, model, state, views):
            return state.logits(views[:, :1].requires_grad_())[:, 0], state

    class Random(ZeroShot):
        """the same call gives other bits"""

        def predict(self, model, state, views):
            return state.logits(views[:, :1])[:, 0] + torch.rand(()), state

    class DependsOnBatch(ZeroShot):
        """results change with the composition of batches"""

        def predict(self, model, state, views):
            return state.logits(views[:, :1] - views[:, :1].mean(0))[:, 0], state

    class ChangesState(RunningMean):
        """changes the state that it is given"""

        def predict(self, model, state, views):
            logits, after = super().predict(model, state, views)
            state.total.copy_(after.total)
            state.count.copy_(after.count)
            return logits, state

    class PacksPartOfState(RunningMean):
        """results differ after its state was packed and unpacked"""

        def pack(self, state):
            return {"total": state.total}

    class ChangesViews(ZeroShot):
        """writes to the model, the context or the features that it is given"""

        def predict(self, model, state, views):
            return state.logits(views.mul_(2)[:, :1])[:, 0], state

    class ChangesModel(ZeroShot):
        """writes to the model, the context or the features that it is given"""

        def predict(self, model, state, views):
            model.texts.tower.projection[0].mul_(1.01)
            return state.logits(views[:, :1])[:, 0], state

    class CountsCalls(ZeroShot):
        """the same call gives other bits"""

        calls: ClassVar[list[int]] = []

        def predict(self, model, state, views):
            self.calls.append(1)
            return state.logits(views[:, :1])[:, 0] * len(self.calls), state

    class Raises(ZeroShot):
        """fails on made-up data: ValueError: not today"""

        def start(self, model, context, samples):
            raise ValueError("not today")


BROKEN = {name: method for name, method in vars(BrokenMethods).items() if isinstance(method, type)}


def plugin_row(method, **changes):
    """Return the catalogue row of a plugin's method."""
    stateful = issubclass(method, RunningMean)
    row = MethodRow(name="mine", title="", build=method, stateful=stateful, reads=("adapt.", "views."), digest="d1")
    return replace(row, **changes)


def check(row):
    with registered(row):
        check_method(row.name)


@pytest.mark.parametrize("method", BROKEN.values(), ids=BROKEN)
def test_a_method_that_breaks_the_contract_is_reported_with_the_reason(method):
    with pytest.raises(AssertionError, match=f"^method mine: {re.escape(method.__doc__)}"):
        check(plugin_row(method))


def test_a_method_that_depends_on_earlier_samples_must_be_registered_as_stateful():
    with pytest.raises(AssertionError, match="depend on the samples before; register it with stateful=True"):
        check(plugin_row(RunningMean, stateful=False))


# tests/test_testing.py checks the others, with their penalties
@pytest.mark.parametrize("name", [row.name for row in METHODS.values() if not (row.penalty and row.listed)])
def test_built_in_methods_pass_the_check(name):
    check_method(name)


def test_a_method_with_a_sound_state_passes_the_check():
    check(plugin_row(RunningMean))
