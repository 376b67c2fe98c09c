"""What every method promises (core/methods/base.py), tried on a few made-up samples before a plugin's first trial."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec.catalogue import MethodRow
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.running import class_texts

CLASSES = ("cat", "dog", "bird")
SAMPLES, VIEWS = 4, 8
CLOSE = 1e-2  # of a probability: AdamW's first step has the sign of a gradient, which rounding may turn


def check_method(clip: Clip, row: MethodRow) -> None:
    """InputError if a plugin's method breaks the contract; those that are built in are held to it by tests."""
    if not row.digest:
        return
    try:
        _check(clip, row)
    except InputError:
        raise
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"method {row.name}: fails on made-up samples: {cause}") from error


def _check(clip: Clip, row: MethodRow) -> None:
    context = open_prompt(clip, "a photo of a").context
    model = TextModel(texts=class_texts(clip, CLASSES, len(context)), logit_scale=clip.logit_scale)
    method = build_method(row.name, AdaptConfig().scaled(clip.embedding_scale), "custom")
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(SAMPLES, row.views or VIEWS, len(clip.text.projection[0]), generator=generator)
    views = torch.nn.functional.normalize(views, dim=-1).to(clip.device)

    def run(state: Any, *batches: Tensor) -> tuple[Tensor, Any]:
        outputs = []
        for batch in batches:
            logits, state = method.predict(model, state, batch)
            outputs.append(logits)
        return torch.cat(outputs), state

    def start() -> Any:
        return method.start(model, context, SAMPLES)

    begun = start()
    together, _ = run(begun, views)
    if together.shape != (SAMPLES, len(CLASSES)):
        wanted = (SAMPLES, len(CLASSES))
        raise InputError(f"method {row.name}: logits have shape {tuple(together.shape)}, must be {wanted}")
    if not together.isfinite().all():
        raise InputError(f"method {row.name}: logits are not finite")
    if together.requires_grad:
        raise InputError(f"method {row.name}: its logits need gradients; predict under torch.no_grad()")
    if not torch.equal(together, run(start(), views)[0]):
        raise InputError(f"method {row.name}: the same call gives other bits; it may draw no random numbers")
    if not torch.equal(together, run(begun, views)[0]):
        raise InputError(f"method {row.name}: changes the state that it is given; it must return another")
    if not _same(together, run(start(), *views.split(1))[0]):
        raise InputError(f"method {row.name}: results change with the composition of batches")
    if row.stateful:
        first, state = run(start(), views[:2])
        packed = {name: tensor.clone() for name, tensor in method.pack(state).items()}  # type: ignore[attr-defined]
        second, _ = run(method.unpack(start(), packed), views[2:])  # type: ignore[attr-defined]
        if not _same(together, torch.cat([first, second])):
            raise InputError(f"method {row.name}: goes on otherwise from a state that was packed and unpacked")
    elif not _same(together.flip(0), run(start(), views.flip(0))[0]):
        raise InputError(f"method {row.name}: results depend on the samples before; register it with stateful=True")


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one.softmax(-1) - other.softmax(-1)).abs().max() < CLOSE)
