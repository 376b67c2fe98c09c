"""The engine against golden numbers of two steps, sharpness-aware steps and sharpness (tests/golden)."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.tpt import confident_views, marginal_entropy, measure_sharpness
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig, MeasureConfig
from tests.golden import load, load_steps
from tests.golden.tower import text_model
from tests.kit.names import ASAM, CTPT, ENT_ENT, ENT_REG, OTPT, REG_ENT, SAM, TPT

GOLDEN = load_steps()
CONTEXT = GOLDEN["ctx0"]
VIEWS = F.normalize(GOLDEN["views"].float(), dim=-1)
FAMILY = {"ctpt": CTPT, "otpt": OTPT}
# tolerances of tests/golden/README.md
PROBABILITY, CONTEXTS, GRADIENT = 1e-4, 1e-4, 1e-3
FLIPPED = 3e-3  # share of a context's coordinates that may have stepped in the opposite direction

ORDERS = {  # by golden case: method and settings
    "ent_ent": (ENT_ENT, {}),
    "ent_reg.ctpt": (ENT_REG[CTPT], {}),
    "ent_reg.otpt": (ENT_REG[OTPT], {}),
    "reg_ent.ctpt": (REG_ENT[CTPT], {}),
    "reg_ent.otpt": (REG_ENT[OTPT], {}),
    "reg_ent_sel0.ctpt": (REG_ENT[CTPT], {"reselect": "off"}),
    "reg_ent_sel0.otpt": (REG_ENT[OTPT], {"reselect": "off"}),
}
SHARP = {"sam": SAM[TPT], "asam": ASAM[TPT]}


@pytest.fixture(scope="module")
def model():
    return text_model()


def build(model, name, **settings):
    method = build_method(name, AdaptConfig(**settings), "fine_grained")
    return method, method.start(model, CONTEXT, len(VIEWS))


def selected_views(case):
    rows = GOLDEN[case].long()
    return VIEWS.gather(1, rows[..., None].expand(-1, -1, VIEWS.shape[-1]))


def view_numbers(selected, views):
    """Return the sorted indices of the selected views of each sample."""
    is_equal = (selected[:, :, None] == views[:, None]).all(-1)  # (samples, selected, views)
    is_selected = is_equal.any(1)
    return is_selected.nonzero()[:, 1].view(len(views), -1)


def assert_contexts(actual, expected):
    differs = (actual - expected).abs() > CONTEXTS
    assert differs.float().mean() <= FLIPPED


def assert_gradient(actual, expected):
    assert (actual - expected).abs().max() <= GRADIENT * expected.abs().max()


def assert_case_is_reproduced(model, method, state, context, case):
    """Compare contexts, probabilities and logits with the golden numbers; `context` is the name of the context."""
    contexts = method.adapt_contexts(model, state, VIEWS)
    assert_contexts(contexts, GOLDEN[f"{case}/{context}"])
    logits = method.predict(model, state, VIEWS)[0]
    torch.testing.assert_close(logits.softmax(-1), GOLDEN[f"{case}/probs"], atol=PROBABILITY, rtol=0)
    # Where a gradient is zero, a step may have the opposite sign; logits at the golden context must be equal.
    logits = method.classify(model, GOLDEN[f"{case}/{context}"], VIEWS)
    torch.testing.assert_close(logits, GOLDEN[f"{case}/logits"], atol=1e-3, rtol=0)


def test_every_golden_case_is_tested():
    tested = {f"{case}.{carry}" for case, carry in product(ORDERS, ("carried", "fresh"))} | {*SHARP}
    assert {name.removesuffix("/probs") for name in GOLDEN.arrays if name.endswith("/probs")} == tested
    assert set(catalogue.METHODS) >= {name for name, _ in ORDERS.values()} | set(SHARP.values())


@pytest.mark.parametrize("carry", ["carried", "fresh"])
@pytest.mark.parametrize("case", ORDERS)
def test_two_steps_are_reproduced(model, case, carry):
    name, settings = ORDERS[case]
    method, state = build(model, name, keep_optimizer=carry == "carried", **settings)
    assert_case_is_reproduced(model, method, state, "ctx2", f"{case}.{carry}")


@pytest.mark.parametrize("case", SHARP)
def test_sharpness_aware_steps_are_reproduced(model, case):
    method, state = build(model, SHARP[case])
    assert_case_is_reproduced(model, method, state, "ctx", case)
    gradient = method.entropy_gradient(model, state, selected_views("selected0"))
    perturbation = method.perturbation(CONTEXT.expand_as(gradient), gradient)
    torch.testing.assert_close(perturbation.flatten(1).norm(dim=-1), GOLDEN[f"{case}/eps_norm"], atol=0, rtol=1e-4)
    actual = method.gradient(model, CONTEXT + perturbation, method.loss(model, selected_views("selected0")))
    assert_gradient(actual, GOLDEN[f"{case}/g1"])


def test_gradients_and_views_of_the_first_step_are_reproduced(model):
    method, state = build(model, TPT)
    selected = method.select_views(model, state.first_gradient.features, VIEWS)
    assert torch.equal(view_numbers(selected, VIEWS), GOLDEN["selected0"].long().sort().values)
    assert_gradient(method.entropy_gradient(model, state, selected_views("selected0")), GOLDEN["ent/g1"])
    for case, name in FAMILY.items():
        assert_gradient(build(model, name)[0].penalty_gradient(model, CONTEXT), GOLDEN[f"{case}/g1"])
        _, state = build(model, REG_ENT[name])
        assert_contexts(state.stepped.context, GOLDEN[f"{case}/ctx1"])


@pytest.mark.parametrize("case", ORDERS)
def test_gradients_of_the_second_step_are_reproduced(model, case):
    name, _ = ORDERS[case]
    method, _ = build(model, name)
    if case.startswith("ent"):
        actual = method.second_gradient(model, GOLDEN["ent/ctx1"], VIEWS, selected_views("selected0"))
    else:
        contexts = GOLDEN[f"{case.partition('.')[2]}/ctx1"].expand(len(VIEWS), -1, -1)
        views = selected_views(f"{case}/selected")
        actual = method.gradient(model, contexts, lambda text, rows: marginal_entropy(model.logits(views[rows], text)))
    assert_gradient(actual, GOLDEN[f"{case}/g2"])


# ------------------------------------------------------------ sharpness, in float64


@pytest.fixture(scope="module")
def exact():
    return text_model(torch.float64)


def start_of(prompt):
    """Return the context at which the views of a golden prompt are selected."""
    if prompt.startswith("fpp"):
        return load()["fpp/random.ctx"].double()
    return CONTEXT.double()


@pytest.mark.parametrize("views", ["start", "adapted"])
@pytest.mark.parametrize("prompt", ["init", "tpt", "fpp", "fpp_tpt"])
def test_sharpness_is_reproduced(exact, prompt, views):
    tolerance = 1e-3 if prompt.endswith("tpt") else 1e-6  # a coordinate may have stepped in the opposite direction
    start, samples = start_of(prompt), F.normalize(GOLDEN["views"].double(), dim=-1)
    contexts = start.expand(len(samples), -1, -1)
    if prompt.endswith("tpt"):
        method = build_method(TPT, AdaptConfig(), "fine_grained")
        contexts = method.adapt_contexts(exact, method.start(exact, start, len(samples)), samples)
    suffix = "" if views == "start" else "_resel"
    for rho in GOLDEN.settings["sharpness_rho"]:
        actual = measure_sharpness(
            exact, start, contexts, samples, 0.1, MeasureConfig(rho=rho, views=views), ("sharpness", "product")
        )
        expected = {"sharpness": f"h{suffix}.rho{rho}", "product": f"dot{suffix}"}
        for column, name in expected.items():
            torch.testing.assert_close(actual[column], GOLDEN[f"sharp/{prompt}.{name}"], rtol=tolerance, atol=1e-9)
    if views == "start":
        product = actual["product"]
        fisher_rao = torch.stack([product.square().mean(), product.square().mean().sqrt(), product.abs().mean()])
        torch.testing.assert_close(fisher_rao, GOLDEN[f"sharp/{prompt}.fisher_rao"], rtol=tolerance, atol=0)


@pytest.mark.parametrize("prompt", ["init", "fpp"])
def test_views_that_sharpness_is_measured_on_are_reproduced(exact, prompt):
    samples = F.normalize(GOLDEN["views"].double(), dim=-1)
    logits = exact.logits(samples, exact.features(start_of(prompt)))
    selected = view_numbers(confident_views(samples, logits, 0.1), samples)
    assert torch.equal(selected, GOLDEN[f"sharp/{prompt}.selected"].long().sort().values)
