"""The naive reference reproduces golden numbers of the released code.

The package is compared with both of them: in tests/core/test_golden.py and in tests/contracts. So this third comparison
is made in the nightly run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.golden import HEADS, load, load_steps
from tests.kit.long_forms import MARKS
from tests.reference.naive import (
    CLASS_STD,
    NaiveText,
    Noise,
    Penalty,
    adapt_one,
    adapt_sharpness_aware,
    adapt_two_steps,
    dispersion,
    householder,
    pretrain,
    prompt_features,
    sharpness,
)

pytestmark = list(MARKS)
GOLDEN = load()
TEXT = NaiveText(GOLDEN.weights, HEADS, quick_gelu=True)
TOKENS, CONTEXT0 = GOLDEN["tta/tokens"], GOLDEN["tta/ctx0"]

PENALTIES: dict[str, Penalty | None] = {"baseline": None, "tpt": None, "tpt_ctpt": dispersion, "tpt_otpt": householder}


def cases_of(section: str) -> list[Any]:
    """Return the cases in a section of the settings as parameters of a test."""
    return [pytest.param(case, id=case["name"]) for case in GOLDEN.settings[section]]


def share_of_equal(ours: Tensor, theirs: Tensor) -> float:
    """Return the share of equal coordinates.

    Some coordinates differ: where a gradient is only rounding error, AdamW's first step makes a full step of its sign.
    """
    return float(((ours - theirs).abs() < 1e-5).float().mean())


def test_class_texts_are_sos_context_name_full_stop_eot_and_padding() -> None:
    for row in TOKENS.tolist():
        eot = row.index(max(row))
        assert len(row) == 77
        assert row[:5] == [49406, 320, 1125, 539, 320]
        assert row[eot - 1 : eot + 1] == [269, 49407]
        assert not any(row[eot + 1 :])


def test_open_clips_tokenizer_gives_the_tokens_of_the_class_texts() -> None:
    import open_clip

    prompt = GOLDEN.settings["ctx_init"]
    texts = [f"{prompt} {name}." for name in GOLDEN.settings["classnames"]]
    assert torch.equal(open_clip.get_tokenizer("ViT-B-16")(texts), TOKENS)


def test_the_context_is_the_embedding_of_its_words() -> None:
    assert torch.equal(TEXT.embed(TOKENS)[0, 1:5], CONTEXT0)


def test_text_features_are_reproduced() -> None:
    features = prompt_features(TEXT, TOKENS, CONTEXT0)
    torch.testing.assert_close(features, GOLDEN["tta/text_features"], atol=2e-6, rtol=0)


@pytest.mark.parametrize(("name", "penalty"), [("ctpt", dispersion), ("otpt", householder)])
def test_penalties_are_reproduced(name: str, penalty: Penalty) -> None:
    features = prompt_features(TEXT, TOKENS, CONTEXT0)
    assert float(penalty(features)) == pytest.approx(float(GOLDEN[f"tta/reg.{name}"]), abs=2e-6)


@pytest.mark.parametrize("case", cases_of("cases"))
def test_adaptation_is_reproduced(case: dict[str, Any]) -> None:
    adapted = [
        adapt_one(
            TEXT,
            TOKENS,
            CONTEXT0,
            views,
            logit_scale=GOLDEN.logit_scale,
            steps=case["steps"],
            lr=GOLDEN.settings["lr"],
            selection=GOLDEN.settings["selection"],
            penalty=PENALTIES[case["run_type"]],
            weight=case["weight"],
        )
        for views in GOLDEN["tta/views"].float()
    ]
    probabilities = torch.stack([sample.probabilities for sample in adapted])
    contexts = torch.stack([sample.context for sample in adapted])
    theirs = f"tta/{case['name']}"
    torch.testing.assert_close(probabilities, GOLDEN[f"{theirs}.probs"], atol=1e-4, rtol=0)
    assert share_of_equal(contexts, GOLDEN[f"{theirs}.ctx"]) >= 0.995


@pytest.mark.parametrize("run", cases_of("fpp"))
def test_pretraining_is_reproduced(run: dict[str, Any]) -> None:
    def stored(name: str) -> Tensor:
        return GOLDEN[f"fpp/{run['name']}.{name}"].float()

    draws = zip(stored("noise_ctx"), stored("noise_sos"), stored("noise_suffix"), strict=True)
    random = run["predefined"] == "random"
    start = stored("init_ctx") * CLASS_STD if random else CONTEXT0
    weight = 1 + 15 / len(TOKENS) if run["FL_lambda"] == -1 else run["FL_lambda"]
    trained = pretrain(TEXT, TOKENS, CONTEXT0, start, [Noise(*step) for step in draws], weight=weight)
    # The tolerance detects draws that are scaled in half precision: losses differ by 9e-5, features by 5e-5.
    torch.testing.assert_close(trained.losses, stored("losses"), atol=1e-5, rtol=0)
    torch.testing.assert_close(trained.features, stored("text_features"), atol=1e-5, rtol=0)
    assert share_of_equal(trained.context, stored("ctx")) >= 0.995


# ------------------------------------------------------------ two steps, sharpness-aware steps, sharpness

STEPS = load_steps()
PENALTY_AND_WEIGHT = {"ctpt": (dispersion, 50.0), "otpt": (householder, 18.0), "": (None, 0.0)}
CASES = sorted(name.removesuffix("/ctx2") for name in STEPS.arrays if name.endswith("/ctx2"))  # ORDER.PENALTY.CARRY


def assert_reproduced(adapted: list[Any], context: str, case: str) -> None:
    """Compare probabilities and contexts of all samples; at most three in a thousand coordinates may differ."""
    probabilities = torch.stack([sample.probabilities for sample in adapted])
    torch.testing.assert_close(probabilities, STEPS[f"{case}/probs"], atol=1e-4, rtol=0)
    contexts = torch.stack([sample.context for sample in adapted])
    differs = (contexts - STEPS[f"{case}/{context}"]).abs() > 1e-4
    assert differs.float().mean() <= 3e-3


@pytest.mark.parametrize("case", CASES)
def test_two_steps_are_reproduced(case: str) -> None:
    steps, _, carry = case.rpartition(".")
    order, _, penalty_name = steps.partition(".")
    first, second = order.removesuffix("_sel0").split("_")
    penalty, weight = PENALTY_AND_WEIGHT[penalty_name]
    adapted = [
        adapt_two_steps(
            TEXT,
            TOKENS,
            CONTEXT0,
            views,
            logit_scale=GOLDEN.logit_scale,
            order=(first, second),  # type: ignore[arg-type]
            carry=carry == "carried",
            reselect=False if order.endswith("_sel0") else None,
            penalty=penalty,
            weight=weight,
        )
        for views in STEPS["views"].float()
    ]
    assert_reproduced(adapted, "ctx2", case)
    losses = torch.tensor([sample.losses for sample in adapted], dtype=torch.float64)
    first_losses = STEPS["ent/loss1" if first == "ent" else f"{penalty_name}/loss1"].expand(len(adapted))
    expected = torch.stack([first_losses, STEPS[f"{steps}/loss2"]], dim=-1)
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("case", "rho"), [("sam", 0.05), ("asam", 0.5)])
def test_sharpness_aware_steps_are_reproduced(case: str, rho: float) -> None:
    adapted = [
        adapt_sharpness_aware(
            TEXT, TOKENS, CONTEXT0, views, logit_scale=GOLDEN.logit_scale, rho=rho, adaptive=case == "asam"
        )
        for views in STEPS["views"].float()
    ]
    assert_reproduced(adapted, "ctx", case)
    losses = torch.tensor([sample.losses[0] for sample in adapted], dtype=torch.float64)
    torch.testing.assert_close(losses, STEPS["ent/loss1"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("prompt", ["init", "fpp"])
def test_sharpness_is_reproduced(prompt: str) -> None:
    weights = {name: value.double() for name, value in GOLDEN.weights.items()}
    text = NaiveText(weights, HEADS, quick_gelu=True)
    context = (CONTEXT0 if prompt == "init" else GOLDEN["fpp/random.ctx"]).double()
    for rho in STEPS.settings["sharpness_rho"]:
        rows = []
        for views in STEPS["views"].double():
            rows.append(
                sharpness(text, TOKENS, context, views, logit_scale=GOLDEN.logit_scale, rho=rho, selected_at=context)
            )
        expected = torch.stack([STEPS[f"sharp/{prompt}.h.rho{rho}"], STEPS[f"sharp/{prompt}.dot"]], dim=-1)
        torch.testing.assert_close(torch.tensor(rows, dtype=torch.float64), expected, rtol=1e-6, atol=1e-9)
