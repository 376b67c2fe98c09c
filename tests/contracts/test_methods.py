"""What every row of METHODS promises; a new row is tested by being there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep import catalogue
from fpp_sweep.catalogue import METHODS
from fpp_sweep.config import AdaptConfig
from fpp_sweep.core.methods import build_method
from fpp_sweep.errors import InputError
from tests.reference import naive
from tests.texts import twins

PAIR = twins()
PENALTIES = {"ctpt": naive.dispersion, "otpt": naive.householder}  # methods that are TPT and a penalty
EPISODIC = [name for name, row in METHODS.items() if not row.stateful]


def predict(name, views, *, group="fine_grained", **settings):
    method = build_method(name, AdaptConfig(**settings), group)
    logits, _ = method.predict(PAIR.model, method.start(PAIR.model, PAIR.context, len(views)), views)
    return logits


@pytest.mark.parametrize("name", METHODS)
def test_logits_are_one_row_for_each_sample_and_finite(name):
    logits = predict(name, PAIR.views(5, 8))
    assert logits.shape == (5, len(PAIR.texts))
    assert torch.isfinite(logits).all()
    assert not logits.requires_grad


@pytest.mark.parametrize("name", METHODS)
def test_the_same_call_gives_the_same_bits(name):
    views = PAIR.views(4, 8)
    assert torch.equal(predict(name, views), predict(name, views))


@pytest.mark.parametrize("name", METHODS)
def test_the_state_survives_a_batch_for_the_next_one(name):
    method = build_method(name, AdaptConfig(), "fine_grained")
    views = PAIR.views(4, 8)
    state = method.start(PAIR.model, PAIR.context, len(views))
    first, state = method.predict(PAIR.model, state, views[:2])
    second, _ = method.predict(PAIR.model, state, views[2:])
    whole, _ = method.predict(PAIR.model, method.start(PAIR.model, PAIR.context, len(views)), views)
    torch.testing.assert_close(torch.cat([first, second]), whole, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", EPISODIC)
@settings(max_examples=5, deadline=None)
@given(order=st.permutations(range(4)))
def test_an_episodic_sample_does_not_depend_on_its_company(name, order):
    views = PAIR.views(4, 8)
    shuffled = predict(name, views[list(order)])
    torch.testing.assert_close(shuffled, predict(name, views)[list(order)], atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", METHODS)
def test_no_steps_are_zero_shot(name):
    views = PAIR.views(3, 8)
    torch.testing.assert_close(predict(name, views, steps=0), predict("zero_shot", views), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_of_weight_zero_is_tpt(name):
    views = PAIR.views(3, 8)
    torch.testing.assert_close(predict(name, views, penalty=0.0), predict("tpt", views), atol=1e-4, rtol=0)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", ["tpt", "ctpt", "otpt"])
@pytest.mark.parametrize("group", ["fine_grained", "shifts"])
def test_probabilities_equal_the_naive_reference(name, group, steps):
    views = PAIR.views(6, 64)
    row = METHODS[name]
    found = predict(name, views, group=group, steps=steps).softmax(-1)
    for sample, probabilities in zip(views, found, strict=True):
        expected = naive.adapt_one(
            PAIR.naive,
            PAIR.token_ids,
            PAIR.context,
            sample,
            logit_scale=PAIR.logit_scale,
            steps=steps,
            penalty=PENALTIES.get(name),
            weight=row.weight if group == "fine_grained" else row.weight_on_shifts,
        )
        torch.testing.assert_close(probabilities, expected.probabilities, atol=1e-4, rtol=0)


def test_zero_shot_equals_the_naive_reference():
    views = PAIR.views(6, 4)
    found = predict("zero_shot", views).softmax(-1)
    expected = [
        naive.zero_shot(PAIR.naive, PAIR.token_ids, PAIR.context, sample, logit_scale=PAIR.logit_scale)
        for sample in views
    ]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)


def test_the_published_weights_are_those_of_the_kind_of_dataset():
    assert (METHODS["ctpt"].weight, METHODS["ctpt"].weight_on_shifts) == (50, 20)
    assert (METHODS["otpt"].weight, METHODS["otpt"].weight_on_shifts) == (18, 2)
    assert build_method("otpt", AdaptConfig(), "shifts").weight == 2
    assert build_method("otpt", AdaptConfig(penalty=7.0), "shifts").weight == 7


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(InputError, match="unknown method 'ctp', did you mean 'ctpt'"):
        catalogue.method("ctp")


TUNING = ["tpt", "ctpt", "otpt"]


@pytest.mark.parametrize("name", TUNING)
def test_the_step_alone_is_in_half_precision_where_it_is_asked_for(name):
    """Rounding to half precision turns some signs of Adam's first step; another order of float32 moves 1e-8."""
    views = PAIR.views(16, 64)

    def contexts(precision):
        method = build_method(name, AdaptConfig(precision=precision), "fine_grained")
        return method.adapted(PAIR.model, method.start(PAIR.model, PAIR.context, len(views)), views)

    assert (contexts("autocast") - contexts("float32")).abs().max() > AdaptConfig().lr


@pytest.mark.parametrize("name", TUNING)
def test_the_prediction_alone_is_in_half_precision_where_it_is_asked_for(name):
    views = PAIR.views(16, 64)
    half, full = (predict(name, views, steps=0, precision=precision) for precision in ("autocast", "float32"))
    assert 0.01 < (half - full).abs().max() < 1


@pytest.mark.parametrize("name", TUNING)
def test_half_precision_is_near(name):
    views = PAIR.views(16, 64)
    exact = predict(name, views).softmax(-1)
    near = predict(name, views, precision="autocast").float().softmax(-1)
    assert (near - exact).abs().max() < 0.25
    assert (near.argmax(-1) == exact.argmax(-1)).float().mean() > 0.8
