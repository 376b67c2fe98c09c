"""The contract of methods (core/methods/base.py), checked on made-up samples before a plugin's first trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import plugins
from fpp_sweep.spec.catalogue import MethodRow
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.prompts import class_texts

CLASSES = ("cat", "dog", "bird")
SAMPLES, VIEWS = 4, 8
TOLERANCE = 1e-2  # tolerance of a probability: AdamW's first step has the sign of a gradient, which rounding may turn


def check_method(clip: Clip, row: MethodRow) -> None:
    """Raise InputError if a plugin's method breaks the contract; tests check the methods that are built in."""
    if not row.digest:
        return
    try:
        check = _MethodCheck.of(clip, row)
        problem = check.find_problem()
    except InputError:
        raise
    except Exception as error:
        line = plugins.line_of(error)
        where = f"method {row.name} ({line})" if line else f"method {row.name}"
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{where}: fails on made-up samples: {cause}") from error
    if problem:
        raise InputError(f"method {row.name} ({plugins.origin_of(row)}): {problem}")


@dataclass(frozen=True, slots=True)
class _MethodCheck:
    """A method with made-up samples."""

    row: MethodRow
    method: Any
    model: TextModel
    context: Tensor
    views: Tensor  # (samples, views, width), unit norm

    @classmethod
    def of(cls, clip: Clip, row: MethodRow) -> _MethodCheck:
        context = open_prompt(clip, "a photo of a").context
        model = TextModel(texts=class_texts(clip, CLASSES, len(context)), logit_scale=clip.logit_scale)
        method = build_method(row.name, AdaptConfig().scaled(clip.embedding_scale), "custom")
        generator = torch.Generator().manual_seed(0)
        width = len(clip.text.projection[0])
        views = torch.randn(SAMPLES, row.views or VIEWS, width, generator=generator)
        views = torch.nn.functional.normalize(views, dim=-1).to(clip.device)
        return cls(row=row, method=method, model=model, context=context, views=views)

    def find_problem(self) -> str | None:
        """Return the first broken promise, or None."""
        views, context = self.views.clone(), self.context.clone()
        state = self._start()
        logits, _ = self._predict(state, self.views)
        if not torch.equal(views, self.views) or not torch.equal(context, self.context):
            return "changes the features or the context that it is given; it must work on copies"
        problem = self._problem_of_logits(logits)
        problem = problem or self._problem_of_repeats(state, logits)
        return problem or self._problem_of_order(logits)

    def _problem_of_logits(self, logits: Tensor) -> str | None:
        expected = (SAMPLES, len(CLASSES))
        if logits.shape != expected:
            return f"logits have shape {tuple(logits.shape)}, must be {expected}"
        if not logits.isfinite().all():
            return "logits are not finite"
        if logits.requires_grad:
            return "its logits need gradients; predict under torch.no_grad()"
        return None

    def _problem_of_repeats(self, state: Any, logits: Tensor) -> str | None:
        """Look for differences when the same samples are predicted again, from a new state and from the first one."""
        repeated, _ = self._predict(self._start(), self.views)
        if not torch.equal(logits, repeated):
            return "the same call gives other bits; a method must not draw random numbers"
        from_first_state, _ = self._predict(state, self.views)
        if not torch.equal(logits, from_first_state):
            return "changes the state that it is given; it must return a new one"
        one_by_one, _ = self._predict(self._start(), *self.views.split(1))
        if not _are_close(logits, one_by_one):
            return "results change with the composition of batches"
        return None

    def _problem_of_order(self, logits: Tensor) -> str | None:
        """Look for differences when the stream is reversed or, for a stateful method, interrupted."""
        if not self.row.stateful:
            reversed_logits, _ = self._predict(self._start(), self.views.flip(0))
            if not _are_close(logits.flip(0), reversed_logits):
                return "results depend on the samples before; register it with stateful=True"
            return None
        first, state = self._predict(self._start(), self.views[:2])
        packed = {name: tensor.clone() for name, tensor in self.method.pack(state).items()}
        second, _ = self._predict(self.method.unpack(self._start(), packed), self.views[2:])
        if not _are_close(logits, torch.cat([first, second])):
            return "results differ after its state was packed and unpacked"
        return None

    def _start(self) -> Any:
        return self.method.start(self.model, self.context, SAMPLES)

    def _predict(self, state: Any, *batches: Tensor) -> tuple[Tensor, Any]:
        """Return the logits of all batches, one after the other, and the state after the last."""
        outputs = []
        for batch in batches:
            logits, state = self.method.predict(self.model, state, batch)
            outputs.append(logits)
        return torch.cat(outputs), state


def _are_close(first: Tensor, second: Tensor) -> bool:
    largest = (first.softmax(-1) - second.softmax(-1)).abs().max()
    return bool(largest < TOLERANCE)
