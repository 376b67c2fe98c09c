"""The naive reference computes what the released code was measured to compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.golden import HEADS, load
from tests.reference.naive import (
    CLASS_STD,
    NaiveText,
    Noise,
    Penalty,
    adapt_one,
    dispersion,
    householder,
    pretrain,
    prompt_features,
)

GOLDEN = load()
TEXT = NaiveText(GOLDEN.weights, HEADS, quick_gelu=True)
TOKENS, CONTEXT0 = GOLDEN["tta/tokens"], GOLDEN["tta/ctx0"]

PENALTIES: dict[str, Penalty | None] = {"baseline": None, "tpt": None, "tpt_ctpt": dispersion, "tpt_otpt": householder}


def named(section: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in GOLDEN.settings[section]]


def share_that_agrees(ours: Tensor, theirs: Tensor) -> float:
    """Of a context's coordinates; a few gradients are zero up to rounding, and AdamW amplifies their sign."""
    return float(((ours - theirs).abs() < 1e-5).float().mean())


def test_class_texts_are_sos_context_name_full_stop_eot_and_padding() -> None:
    for row in TOKENS.tolist():
        eot = row.index(max(row))
        assert len(row) == 77
        assert row[:5] == [49406, 320, 1125, 539, 320]
        assert row[eot - 1 : eot + 1] == [269, 49407]
        assert not any(row[eot + 1 :])


@pytest.mark.slow
def test_class_texts_are_what_open_clips_tokenizer_makes_of_the_names() -> None:
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
def test_regularisers_are_reproduced(name: str, penalty: Penalty) -> None:
    features = prompt_features(TEXT, TOKENS, CONTEXT0)
    assert float(penalty(features)) == pytest.approx(float(GOLDEN[f"tta/reg.{name}"]), abs=2e-6)


@pytest.mark.parametrize("case", named("cases"))
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
    assert share_that_agrees(contexts, GOLDEN[f"{theirs}.ctx"]) >= 0.995


@pytest.mark.parametrize("run", named("fpp"))
def test_pretraining_is_reproduced(run: dict[str, Any]) -> None:
    def stored(name: str) -> Tensor:
        return GOLDEN[f"fpp/{run['name']}.{name}"].float()

    draws = zip(stored("noise_ctx"), stored("noise_sos"), stored("noise_suffix"), strict=True)
    random = run["predefined"] == "random"
    start = stored("init_ctx") * CLASS_STD if random else CONTEXT0
    weight = 1 + 15 / len(TOKENS) if run["FL_lambda"] == -1 else run["FL_lambda"]
    trained = pretrain(TEXT, TOKENS, CONTEXT0, start, [Noise(*step) for step in draws], weight=weight)
    # scaling the draws in half precision would miss the losses by 9e-5 and the features by 5e-5
    torch.testing.assert_close(trained.losses, stored("losses"), atol=1e-5, rtol=0)
    torch.testing.assert_close(trained.features, stored("text_features"), atol=1e-5, rtol=0)
    assert share_that_agrees(trained.context, stored("ctx")) >= 0.995
