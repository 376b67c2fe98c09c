"""Sharpness measures against the naive form, closed forms, finite differences and curvature."""

import pytest
import torch

from fpp_sweep.core.methods.gradients import gradient_of, gradients_at
from fpp_sweep.core.methods.tpt import confident_views, marginal_entropy, measure_sharpness
from fpp_sweep.spec.config import MeasureConfig
from tests.golden import load, load_steps
from tests.golden.tower import text_model
from tests.kit.texts import twins
from tests.reference import naive

PAIR = twins()
VIEWS = PAIR.views(4, 64)
BOTH = ("sharpness", "product")
CONTEXTS = PAIR.context + 0.02 * torch.randn(4, *PAIR.context.shape, generator=torch.Generator().manual_seed(0))


def measure(config, contexts=CONTEXTS, columns=BOTH):
    return measure_sharpness(PAIR.model, PAIR.context, contexts, VIEWS, 0.1, config, columns)


@pytest.mark.parametrize("rho", [0.05, 1.0])
@pytest.mark.parametrize("norm", ["global", "token"])
@pytest.mark.parametrize("views", ["start", "adapted"])
def test_measures_equal_the_naive_form(rho, norm, views):
    ours = measure(MeasureConfig(rho=rho, norm=norm, views=views))
    for index, (sample, context) in enumerate(zip(VIEWS, CONTEXTS, strict=True)):
        actual = (float(ours["sharpness"][index]), float(ours["product"][index]))
        expected = naive.sharpness(
            PAIR.naive,
            PAIR.token_ids,
            context,
            sample,
            logit_scale=PAIR.logit_scale,
            rho=rho,
            selected_at=context if views == "adapted" else PAIR.context,
            by_token=norm == "token",
        )
        assert actual == pytest.approx(expected, abs=2e-5, rel=1e-4)


def test_only_requested_columns_are_returned():
    both = measure(MeasureConfig())
    assert both.keys() == set(BOTH)
    for column in BOTH:
        only = measure(MeasureConfig(), columns=[column])
        assert only.keys() == {column}
        assert torch.equal(only[column], both[column])


def test_sharpness_of_a_constant_loss_is_zero():
    flat = twins(classes=("ox",))  # a single class has probability 1 for any context
    views = torch.nn.functional.normalize(torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    numbers = measure_sharpness(flat.model, flat.context, CONTEXTS, views, 0.5, MeasureConfig(rho=1.0), BOTH)
    for name in BOTH:
        assert numbers[name].tolist() == [0.0] * 4


# ------------------------------------------------------------ tests in float64 on the golden tower


MODEL = text_model(torch.float64)
THETA = load()["tta/ctx0"].double().expand(3, -1, -1)
SAMPLES = torch.nn.functional.normalize(load_steps()["views"][:3].double(), dim=-1)
CONFIDENT = confident_views(SAMPLES, MODEL.logits(SAMPLES, MODEL.features(THETA[0])), 0.1)


def loss(contexts):
    return marginal_entropy(MODEL.logits(CONFIDENT, MODEL.features(contexts)))


def gradient(contexts):
    def feature_gradient(features, rows):
        return gradient_of(lambda text: marginal_entropy(MODEL.logits(CONFIDENT[rows], text)), features)

    return gradients_at(MODEL, contexts, feature_gradient)[0]


def rise(rho):
    return measure_sharpness(MODEL, THETA[0], THETA, SAMPLES, 0.1, MeasureConfig(rho=rho), BOTH)["sharpness"]


def test_the_product_equals_the_slope_of_the_loss_along_the_context():
    step = 1e-5
    slope = (loss((1 + step) * THETA) - loss((1 - step) * THETA)) / (2 * step)
    product = measure_sharpness(MODEL, THETA[0], THETA, SAMPLES, 0.1, MeasureConfig(), ["product"])["product"]
    torch.testing.assert_close(product, slope, rtol=1e-6, atol=1e-9)


def test_sharpness_of_a_short_step_equals_the_step_times_the_gradients_norm():
    lengths = gradient(THETA).flatten(1).norm(dim=-1)
    torch.testing.assert_close(rise(1e-6) / 1e-6, lengths, rtol=1e-4, atol=0)
