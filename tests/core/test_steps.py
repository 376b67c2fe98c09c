"""Sharpness-aware steps and two steps against their naive forms, with settings other than the defaults."""

from dataclasses import replace

import pytest
import torch

from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.gradients import ByJacobian
from fpp_sweep.core.methods.penalties import squared_orthogonality
from fpp_sweep.core.optim import unit
from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.spec.config import AdaptConfig
from tests.kit.names import ASAM, CTPT, ENT_ENT, ENT_REG, OTPT, OTPT_SQUARED, REG_ENT, SAM, TPT
from tests.kit.texts import twins
from tests.reference import naive

PAIR = twins(width=48, heads=4, layers=3, embed_dim=24)
VIEWS = PAIR.views(4, 64)
PENALTIES = {CTPT: (naive.dispersion, 50.0), OTPT: (naive.householder, 18.0), TPT: (None, 0.0)}
SHARPNESS_AWARE = [*SAM.values(), *ASAM.values()]
TWO_STEPS = [ENT_ENT, *ENT_REG.values(), *REG_ENT.values()]


def base_method(name):
    """Return the method that a variant extends."""
    (base,) = [base for base in (TPT, CTPT, OTPT) if name.startswith(base)]
    return base


def adapt(name, model=PAIR.model, samples=4, **settings):
    method = build_method(name, AdaptConfig(**settings), "fine_grained")
    state = method.start(model, PAIR.context, samples)
    return method.adapt_contexts(model, state, VIEWS), method.predict(model, state, VIEWS)[0].softmax(-1)


def assert_equal_to(naive_form, name, settings, **naive_settings):
    contexts, probabilities = adapt(name, **settings)
    penalty, weight = PENALTIES[base_method(name)]
    for sample, context, actual in zip(VIEWS, contexts, probabilities, strict=True):
        expected = naive_form(
            PAIR.naive,
            PAIR.token_ids,
            PAIR.context,
            sample,
            logit_scale=PAIR.logit_scale,
            penalty=penalty,
            weight=weight,
            **naive_settings,
        )
        torch.testing.assert_close(actual, expected.probabilities, atol=1e-4, rtol=0)
        # Where a gradient is zero up to rounding, its sign and with it the step of a coordinate may differ.
        assert ((context - expected.context).abs() > 1e-4).float().mean() <= 5e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "lr": 0.001, "steps": 2},
        {"reselect": "on", "steps": 2},
        {"sam_rho": 1.0, "asam_rho": 3.0, "view_fraction": 0.5, "weight_decay": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SHARPNESS_AWARE)
def test_sharpness_aware_steps_equal_the_naive_form(name, settings):
    naive_settings = {key: value for key, value in settings.items() if not key.endswith("rho")}
    if "view_fraction" in naive_settings:
        naive_settings["selection"] = naive_settings.pop("view_fraction")
    naive_settings["reselect"] = settings.get("reselect") == "on"
    adaptive = name in ASAM.values()
    rho = settings.get("asam_rho", 0.5) if adaptive else settings.get("sam_rho", 0.05)
    assert_equal_to(naive.adapt_sharpness_aware, name, settings, rho=rho, adaptive=adaptive, **naive_settings)


@pytest.mark.parametrize(("carry", "reselect"), [(True, "auto"), (True, "off"), (False, "on")])
@pytest.mark.parametrize("name", TWO_STEPS)
def test_two_steps_equal_the_naive_form(name, carry, reselect):
    order = tuple(name.split("_")[1:])
    naive_settings = {"carry": carry, "reselect": {"auto": None, "on": True, "off": False}[reselect]}
    assert_equal_to(
        naive.adapt_two_steps, name, {"keep_optimizer": carry, "reselect": reselect}, order=order, **naive_settings
    )


def test_two_steps_on_the_entropy_equal_tpt_with_two_steps():
    assert torch.equal(adapt(ENT_ENT)[0], adapt(TPT, steps=2)[0])


@pytest.mark.parametrize("name", [TPT, *SHARPNESS_AWARE, *TWO_STEPS])
def test_batches_of_one_sample_give_the_same_predictions(name, monkeypatch):
    expected = adapt(name, steps=2)[1]
    monkeypatch.setattr(ClassTexts, "contexts_per_batch", lambda texts: 1)
    torch.testing.assert_close(adapt(name, steps=2)[1], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [TPT, CTPT, OTPT])
def test_a_plain_gradient_step_equals_the_naive_form(name):
    settings = {"optimizer": "sgd", "lr": 0.05, "steps": 1}
    assert_equal_to(naive.adapt_sharpness_aware, name, settings, **settings, rho=0.0)


def test_the_squared_penalty_equals_the_papers_formula():
    text = PAIR.model.features(PAIR.context).double()
    gram = text @ text.T
    assert squared_orthogonality(text).item() == pytest.approx((gram - torch.eye(len(gram))).square().sum().item())
    plain, squared = (adapt(name)[0] for name in (OTPT, OTPT_SQUARED))
    assert not torch.equal(plain, squared)


@pytest.mark.parametrize("name", [*SHARPNESS_AWARE, *TWO_STEPS])
def test_the_jacobian_form_gives_the_same_predictions(name):
    state = build_method(name, AdaptConfig(), "fine_grained").start(PAIR.model, PAIR.context, 100_000)
    assert isinstance((state.stepped if name in REG_ENT.values() else state).first_gradient, ByJacobian)
    torch.testing.assert_close(adapt(name, samples=100_000)[1], adapt(name)[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", [SAM[TPT], ASAM[TPT], ENT_ENT])
def test_where_the_gradient_is_zero_the_prompt_only_decays(name, optimizer):
    model = replace(PAIR.model, logit_scale=0.0)
    contexts, probabilities = adapt(name, model, optimizer=optimizer, lr=0.1, weight_decay=0.5)
    steps = 2 if name == ENT_ENT else 1
    torch.testing.assert_close(contexts, (PAIR.context * 0.95**steps).expand_as(contexts), atol=1e-6, rtol=0)
    assert torch.isfinite(probabilities).all()


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 0.0])
def test_a_unit_gradient_has_norm_one_or_zero(scale):
    gradient = scale * torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    for dim in ((-2, -1), (-1,)):
        lengths = torch.linalg.vector_norm(unit(gradient, dim), dim=dim)
        torch.testing.assert_close(lengths, torch.full_like(lengths, float(scale > 0)))
