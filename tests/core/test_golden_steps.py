"""Two steps, sharpness-aware steps and sharpness as they were measured (tests/golden)."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.measures import measured
from fpp_sweep.core.methods.tpt import select
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig, MeasureConfig
from tests.golden import load, load_steps
from tests.golden.tower import text_model
from tests.names import ASAM, CTPT, ENT_ENT, ENT_REG, OTPT, REG_ENT, SAM, TPT

GOLDEN = load_steps()
CONTEXT = GOLDEN["ctx0"]
VIEWS = F.normalize(GOLDEN["views"].float(), dim=-1)
FAMILY = {"ctpt": CTPT, "otpt": OTPT}
# what the golden README allows
PROBABILITY, CONTEXTS, FLIPPED, GRADIENT = 1e-4, 1e-4, 3e-3, 1e-3

ORDERS = {
    "ent_ent": (ENT_ENT, {}),
    **{f"ent_reg.{name}": (ENT_REG[row], {}) for name, row in FAMILY.items()},
    **{f"reg_ent.{name}": (REG_ENT[row], {}) for name, row in FAMILY.items()},
    **{f"reg_ent_sel0.{name}": (REG_ENT[row], {"reselect": "off"}) for name, row in FAMILY.items()},
}
SHARP = {"sam": SAM[TPT], "asam": ASAM[TPT]}


@pytest.fixture(scope="module")
def model():
    return text_model()


def built(model, name, **settings):
    method = build_method(name, AdaptConfig(**settings), "fine_grained")
    return method, method.start(model, CONTEXT, len(VIEWS))


def kept(case):
    rows = GOLDEN[case].long()
    return VIEWS.gather(1, rows[..., None].expand(-1, -1, VIEWS.shape[-1]))


def numbers(chosen, views):
    """Of the views that were chosen, sorted."""
    return (chosen[:, :, None] == views[:, None]).all(-1).any(1).nonzero()[:, 1].view(len(views), -1)


def assert_contexts(found, expected):
    assert ((found - expected).abs() > CONTEXTS).float().mean() <= FLIPPED


def assert_gradient(found, expected):
    assert (found - expected).abs().max() <= GRADIENT * expected.abs().max()


def assert_case(model, method, state, context, case):
    contexts = method.adapted(model, state, VIEWS)
    assert_contexts(contexts, GOLDEN[f"{case}/{context}"])
    logits = method.predict(model, state, VIEWS)[0]
    torch.testing.assert_close(logits.softmax(-1), GOLDEN[f"{case}/probs"], atol=PROBABILITY, rtol=0)
    # the step may go the other way where a gradient is zero; from the measured context, logits are equal
    logits = method.classified(model, GOLDEN[f"{case}/{context}"], VIEWS)
    torch.testing.assert_close(logits, GOLDEN[f"{case}/logits"], atol=1e-3, rtol=0)


def test_every_case_is_here():
    cases = {f"{case}.{carry}" for case, carry in product(ORDERS, ("carried", "fresh"))} | {*SHARP}
    assert {name.removesuffix("/probs") for name in GOLDEN.arrays if name.endswith("/probs")} == cases
    assert set(catalogue.METHODS) >= {name for name, _ in ORDERS.values()} | set(SHARP.values())


@pytest.mark.parametrize("carry", ["carried", "fresh"])
@pytest.mark.parametrize("case", ORDERS)
def test_two_steps(model, case, carry):
    name, settings = ORDERS[case]
    method, state = built(model, name, keep_optimizer=carry == "carried", **settings)
    assert_case(model, method, state, "ctx2", f"{case}.{carry}")


@pytest.mark.parametrize("case", SHARP)
def test_sharpness_aware_steps(model, case):
    method, state = built(model, SHARP[case])
    assert_case(model, method, state, "ctx", case)
    gradient = method.entropy_gradient(model, state, kept("selected0"))
    climb = method.climb(CONTEXT.expand_as(gradient), gradient)
    torch.testing.assert_close(climb.flatten(1).norm(dim=-1), GOLDEN[f"{case}/eps_norm"], atol=0, rtol=1e-4)
    found = method.gradient(model, CONTEXT + climb, method.loss(model, kept("selected0")))
    assert_gradient(found, GOLDEN[f"{case}/g1"])


def test_the_first_steps_gradients_and_views(model):
    method, state = built(model, TPT)
    chosen = method.selected(model, state.first.features, VIEWS)
    assert torch.equal(numbers(chosen, VIEWS), GOLDEN["selected0"].long().sort().values)
    assert_gradient(method.entropy_gradient(model, state, kept("selected0")), GOLDEN["ent/g1"])
    for case, name in FAMILY.items():
        assert_gradient(built(model, name)[0].penalty_gradient(model, CONTEXT), GOLDEN[f"{case}/g1"])
        _, state = built(model, REG_ENT[name])
        assert_contexts(state.start.context, GOLDEN[f"{case}/ctx1"])


@pytest.mark.parametrize("case", ORDERS)
def test_the_second_steps_gradients(model, case):
    name, _ = ORDERS[case]
    method, _ = built(model, name)
    if case.startswith("ent"):
        found = method.second(model, GOLDEN["ent/ctx1"], VIEWS, kept("selected0"))
    else:
        contexts = GOLDEN[f"{case.partition('.')[2]}/ctx1"].expand(len(VIEWS), -1, -1)
        found = method.gradient(
            model, contexts, lambda text, rows: method.entropy(model, text, kept(f"{case}/selected")[rows])
        )
    assert_gradient(found, GOLDEN[f"{case}/g2"])


# ------------------------------------------------------------ sharpness, in float64


@pytest.fixture(scope="module")
def exact():
    return text_model(torch.float64)


def start_of(prompt):
    return (load()["fpp/random.ctx"] if prompt.startswith("fpp") else CONTEXT).double()


@pytest.mark.parametrize("views", ["start", "adapted"])
@pytest.mark.parametrize("prompt", ["init", "tpt", "fpp", "fpp_tpt"])
def test_sharpness(exact, prompt, views):
    tolerance = 1e-3 if prompt.endswith("tpt") else 1e-6  # a stepped coordinate may have gone the other way
    start, samples = start_of(prompt), F.normalize(GOLDEN["views"].double(), dim=-1)
    contexts = start.expand(len(samples), -1, -1)
    if prompt.endswith("tpt"):
        method = build_method(TPT, AdaptConfig(), "fine_grained")
        contexts = method.adapted(exact, method.start(exact, start, len(samples)), samples)
    end = "" if views == "start" else "_resel"
    for rho in GOLDEN.settings["sharpness_rho"]:
        found = measured(
            exact, start, contexts, samples, 0.1, MeasureConfig(rho=rho, views=views), ("sharpness", "product")
        )
        expected = {"sharpness": f"h{end}.rho{rho}", "product": f"dot{end}"}
        for column, name in expected.items():
            torch.testing.assert_close(found[column], GOLDEN[f"sharp/{prompt}.{name}"], rtol=tolerance, atol=1e-9)
    if views == "start":
        product = found["product"]
        fisher_rao = torch.stack([product.square().mean(), product.square().mean().sqrt(), product.abs().mean()])
        torch.testing.assert_close(fisher_rao, GOLDEN[f"sharp/{prompt}.fisher_rao"], rtol=tolerance, atol=0)


@pytest.mark.parametrize("prompt", ["init", "fpp"])
def test_views_that_sharpness_is_measured_on(exact, prompt):
    samples = F.normalize(GOLDEN["views"].double(), dim=-1)
    logits = exact.logits(samples, exact.features(start_of(prompt)))
    chosen = numbers(select(samples, logits, 0.1), samples)
    assert torch.equal(chosen, GOLDEN[f"sharp/{prompt}.selected"].long().sort().values)
