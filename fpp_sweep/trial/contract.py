"""The contract of methods (core/methods/base.py), checked on made-up samples before a plugin's first trial."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.compute.compiling import eagerly
from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.catalogue import MethodRow
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError, type_and_message
from fpp_sweep.spec.plugin_guard import PluginGuard, call_in_time
from fpp_sweep.spec.plugins import ContractError
from fpp_sweep.trial.prompts import class_texts
from fpp_sweep.trial.write_guard import WriteGuard

SAMPLES, VIEWS = 4, 8
TOLERANCE = 1e-2  # tolerance of a probability: AdamW's first step has the sign of a gradient, which rounding may turn


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Made-up samples, class names, a prompt and settings to check a method with."""

    classes: tuple[str, ...] = ("cat", "dog", "bird")
    prompt: str = "a photo of a"
    seed: int = 0
    samples: int = SAMPLES
    views: int = VIEWS
    adapt: AdaptConfig = field(default_factory=AdaptConfig)


CHECKED = MadeUp()
OTHER_SETTINGS = AdaptConfig(lr=0.02, view_fraction=0.5)
OTHERS = (
    # all else, in the same shapes: a method may keep the first value of each shape
    MadeUp(classes=("dog", "cat", "tree"), prompt="a picture of a", seed=1, adapt=OTHER_SETTINGS),
    MadeUp(classes=("tree", "cat", "dog", "bird", "car"), seed=2, samples=3, views=5),
    # like the checked samples but for one thing: a method may keep the last value of all else
    MadeUp(seed=1),
    MadeUp(prompt="a picture of a"),
    MadeUp(classes=("dog", "cat", "tree")),
    MadeUp(adapt=OTHER_SETTINGS),
)


def bits_of_method(clip: Clip, row: MethodRow, after_others: bool) -> str:
    """Return a digest of the logits of made-up samples, computed at once or after those of other samples."""
    if after_others:
        for other in OTHERS:
            with contextlib.suppress(Exception):  # a plugin may be meant for other sizes
                _MethodCheck.of(clip, row, other).predict_all()
    logits = _MethodCheck.of(clip, row).predict_all()
    return hashlib.sha256(logits.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def check_method(clip: Clip, row: MethodRow, guard: PluginGuard, seconds: float) -> None:
    """Raise InputError if a plugin's method breaks the contract; tests check the methods that are built in."""
    if not row.digest:
        return
    # the check runs in another thread than the tasks, to whose thread CUDA graphs belong
    clip = replace(clip, text=replace(clip.text, run=eagerly))

    def find_problem() -> str | None:
        with guard.around(row):  # in this thread: some of torch's settings belong to a thread
            check = _MethodCheck.of(clip, row)
            logits = check.predict_all()
        with guard.around(row) as changed:  # with libraries loaded, a change of the environment is the plugin's
            problem = check.find_problem(logits)
        if problem and changed:
            problem = f"{problem}; it changes {', '.join(changed)}"
        return problem

    try:
        problem = call_in_time(find_problem, seconds, f"method {row.name}")
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        where = plugins.at_line(f"method {row.name}", plugins.line_of(error))
        raise InputError(f"{where}: fails on made-up samples: {type_and_message(error)}") from error
    if problem:
        raise ContractError(f"method {row.name} ({plugins.origin_of(row)}): {problem}")


@dataclass(frozen=True, slots=True)
class _MethodCheck:
    """A method with made-up samples."""

    row: MethodRow
    made_up: MadeUp
    method: Any
    model: TextModel
    context: Tensor
    views: Tensor  # (samples, views, width), unit norm
    guarded_samples: WriteGuard
    guarded_model: WriteGuard

    @classmethod
    def of(cls, clip: Clip, row: MethodRow, made_up: MadeUp = CHECKED) -> _MethodCheck:
        context = open_prompt(clip, made_up.prompt).context
        texts = class_texts(clip, made_up.classes, len(context))
        model = TextModel(texts=texts, logit_scale=clip.logit_scale)
        method = build_method(row.name, made_up.adapt.scaled(clip.embedding_scale), "custom")
        generator = torch.Generator().manual_seed(made_up.seed)
        width = len(clip.text.projection[0])
        views = torch.randn(made_up.samples, row.views or made_up.views, width, generator=generator)
        views = torch.nn.functional.normalize(views, dim=-1).to(clip.device)
        return cls(
            row=row,
            made_up=made_up,
            method=method,
            model=model,
            context=context,
            views=views,
            guarded_samples=WriteGuard(views, context),
            guarded_model=WriteGuard(clip, model),
        )

    def predict_all(self) -> Tensor:
        """Return the logits of all samples, from a new state."""
        logits, _ = self._predict(self._start(), self.views)
        return logits

    def find_problem(self, logits: Tensor) -> str | None:
        """Return the first broken promise of a method that has predicted these logits, or None."""
        if self.guarded_samples.has_change():
            return "changes the features or the context that it is given; it must work on copies"
        if self.guarded_model.has_change():
            return "changes the model or the class texts that it is given; it must work on copies"
        problem = self._problem_of_logits(logits)
        if problem is None:
            problem = self._problem_of_repeats(logits)
        if problem is None:
            problem = self._problem_of_penalty()
        if problem is None:
            problem = self._problem_of_order(logits)
        return problem

    def _problem_of_logits(self, logits: Tensor) -> str | None:
        expected = (self.made_up.samples, len(self.made_up.classes))
        if logits.shape != expected:
            return f"logits have shape {tuple(logits.shape)}, must be {expected}"
        if not logits.isfinite().all():
            return "logits are not finite"
        if logits.requires_grad:
            return "its logits need gradients; predict under torch.no_grad()"
        return None

    def _problem_of_repeats(self, logits: Tensor) -> str | None:
        """Look for differences when the same samples are predicted again, from new states and from a used one."""
        state = self._start()
        repeated, _ = self._predict(state, self.views)
        # random states were restored after the first call: only a third one shows random numbers
        if not (torch.equal(logits, repeated) and torch.equal(logits, self.predict_all())):
            return "the same call gives other bits; a method draws no random numbers and keeps nothing in itself"
        from_first_state, _ = self._predict(state, self.views)
        if not torch.equal(logits, from_first_state):
            return "changes the state that it is given; it must return a new one"
        one_by_one, _ = self._predict(self._start(), *self.views.split(1))
        if not _are_close(logits, one_by_one):
            return "results change with the composition of batches"
        return None

    def _problem_of_penalty(self) -> str | None:
        """Look for a penalty of a wrong shape, or that writes to the text features or draws random numbers."""
        if self.row.penalty is None:
            return None
        penalty = catalogue.code_of(self.row.penalty)
        features = self.model.features(self.context)
        text = torch.stack([features, features.flip(0)])
        guard = WriteGuard(text)
        value, repeated = penalty(text), penalty(text)
        if guard.has_change():
            return "changes the text features that it is given; it must work on copies"
        if value.shape != text.shape[:1]:
            return f"values for two prompts have shape {tuple(value.shape)}, must be (2,)"
        if not torch.equal(value, repeated):
            return "the same call gives other bits; a penalty draws no random numbers and keeps nothing in itself"
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
        return self.method.start(self.model, self.context, self.made_up.samples)

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
