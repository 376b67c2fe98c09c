"""Checks of a method, penalty, metric or sampler, for the tests of a plugin (docs/plugins.md).

Each check computes made-up data at least twice, on the embedded model, and raises AssertionError with what is wrong.

    # test_vote.py
    from fpp_sweep import load_plugins
    from fpp_sweep.testing import check_method


    def test_vote():
        load_plugins("vote.py")
        check_method("vote")
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.core.models.clip import Clip, load
from fpp_sweep.core.models.names import EMBEDDED
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.records.records import TrialRecord, trial_name
from fpp_sweep.search.study import Suggestion, SweepStudy
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.catalogue import MethodRow, MetricRow
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError, type_and_message
from fpp_sweep.trial.prompts import fitting_texts

CLASSES = ("cat", "dog", "bird")
PROMPT = "a photo of a"
SAMPLES, VIEWS = 4, 8  # of a method
TOLERANCE = 1e-2  # of a probability: AdamW's first step has the sign of a gradient, which rounding may turn
PREDICTIONS = 64  # of a metric
TRIALS = 12  # of a sampler's study
FAILED, BROKEN = (3,), (1, 2)  # numbers of these trials that failed, and that break a constraint
SPACE = """
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  fpp.steps: {low: 1, high: 1000}
  method: [tpt, ctpt]
"""


def check_method(name: str) -> None:
    """Raise AssertionError unless a method keeps the promises of `fpp_sweep/core/methods/base.py` on made-up samples.

    Its logits are finite and have a row for each sample. They have the same bits again, also after the stream is cut
    into two pieces. They do not depend on the composition of batches. It writes to nothing that it is given.

    >>> check_method("tpt")
    """
    _require_none(f"method {name}", catalogue.method(name), _problems_of_method(catalogue.method(name)))


def check_penalty(name: str) -> None:
    """Raise AssertionError unless a penalty has a finite value, with a gradient, for each prompt; check its method.

    >>> check_penalty("otpt")
    """
    _require_none(f"penalty {name}", catalogue.method(name), _problems_of_penalty(catalogue.method(name)))
    check_method(name)


def check_metric(name: str) -> None:
    """Raise AssertionError unless a metric of made-up predictions is a finite number, the same again.

    >>> check_metric("ece")
    """
    _require_none(f"metric {name}", catalogue.metric(name), _problems_of_metric(catalogue.metric(name)))


def check_sampler(name: str) -> None:
    """Raise AssertionError unless a sampler draws values of the space, and the same ones from the same trials.

    Some of the made-up trials have failed or break a constraint.

    >>> check_sampler("random")
    """
    _require_none(f"sampler {name}", catalogue.SAMPLERS.get(name), _problems_of_sampler(name))


def _require_none(title: str, row: catalogue.Row | None, problems: Generator[str]) -> None:
    """Raise AssertionError with the first problem, or with the line of the plugin that fails."""
    where = plugins.file_of(row) if row else None
    try:
        with closing(problems):
            problem = next(problems, None)
    except InputError as error:  # it says where
        raise AssertionError(str(error)) from error
    except Exception as error:
        where = plugins.line_of(error) or where
        problem = f"fails on made-up data: {type_and_message(error)}"
        raise AssertionError(f"{plugins.at_line(title, where)}: {problem}") from error
    if problem is not None:
        raise AssertionError(f"{plugins.at_line(title, where)}: {problem}")


# ------------------------------------------------------------ methods and penalties


def _text_model(clip: Clip) -> tuple[TextModel, Tensor]:
    """Return a model's text side for the made-up classes, and the context of a prompt."""
    context = open_prompt(clip, PROMPT).context
    return TextModel(texts=fitting_texts(clip, CLASSES, len(context)), logit_scale=clip.logit_scale), context


@dataclass(frozen=True, slots=True)
class _Stream:
    """A method on made-up samples."""

    method: Any
    model: TextModel
    context: Tensor

    def start(self) -> Any:
        return self.method.start(self.model, self.context, SAMPLES)

    def predict(self, state: Any, *batches: Tensor) -> Tensor:
        """Return the logits of all batches, one after the other."""
        logits = []
        for batch in batches:
            predicted, state = self.method.predict(self.model, state, batch)
            logits.append(predicted)
        return torch.cat(logits)


def _problems_of_method(row: MethodRow) -> Generator[str]:
    clip = load(EMBEDDED)
    model, context = _text_model(clip)
    stream = _Stream(build_method(row.name, AdaptConfig().scaled(clip.embedding_scale), "custom"), model, context)
    features, first_context = model.features(context), context.clone()
    views = torch.randn(SAMPLES, row.views or VIEWS, features.shape[-1], generator=torch.Generator().manual_seed(0))
    views = torch.nn.functional.normalize(views, dim=-1)
    first_views = views.clone()
    logits = stream.predict(stream.start(), views)
    is_unchanged = torch.equal(context, first_context) and torch.equal(views, first_views)
    if not is_unchanged or not torch.equal(model.features(context), features):
        yield "writes to the model, the context or the features that it is given; it must work on copies"
    if logits.shape != (SAMPLES, len(CLASSES)):
        yield f"logits have shape {tuple(logits.shape)}, must be {(SAMPLES, len(CLASSES))}"
    if not logits.isfinite().all():
        yield "logits are not finite"
    if logits.requires_grad:
        yield "its logits need gradients; predict under torch.no_grad()"
    state = stream.start()
    if not torch.equal(stream.predict(state, views), logits):
        yield "the same call gives other bits; a method draws no random numbers and keeps nothing in itself"
    if not torch.equal(stream.predict(state, views), logits):
        yield "changes the state that it is given; it must return a new one"
    one_by_one = stream.predict(stream.start(), *views.split(1))
    if (one_by_one.softmax(-1) - logits.softmax(-1)).abs().max() > TOLERANCE:
        yield "results change with the composition of batches"
    yield from _problems_of_pieces(row, stream, *views.split(SAMPLES // 2))


def _problems_of_pieces(row: MethodRow, stream: _Stream, first: Tensor, second: Tensor) -> Generator[str]:
    """Cut the stream into two pieces, as shards do: the second one must have the same bits."""
    _, state = stream.method.predict(stream.model, stream.start(), first)
    if row.stateful:
        packed = {key: tensor.clone() for key, tensor in stream.method.pack(state).items()}
        resumed = stream.method.unpack(stream.start(), packed)
        problem = "results differ after its state was packed and unpacked"
    else:
        resumed = stream.start()
        problem = "results depend on the samples before; register it with stateful=True"
    if not torch.equal(stream.predict(resumed, second), stream.predict(state, second)):
        yield problem


def _problems_of_penalty(row: MethodRow) -> Generator[str]:
    if row.penalty is None:
        yield "is a method without a penalty"
        return
    penalty = catalogue.code_of(row.penalty)
    model, context = _text_model(load(EMBEDDED))
    features = model.features(context)
    text = torch.stack([features, features.flip(0)]).requires_grad_()
    value = penalty(text)
    if value.shape != text.shape[:1]:
        yield f"values for two prompts have shape {tuple(value.shape)}, must be (2,)"
    if not value.isfinite().all():
        yield "values are not finite"
    if not value.requires_grad:
        yield "has no gradient, so that it would change nothing"


# ------------------------------------------------------------ metrics


def _problems_of_metric(row: MetricRow) -> Generator[str]:
    if row.compute is None:
        yield "is a cost of a whole trial, which is not computed from predictions"
        return
    compute = catalogue.code_of(row.compute)
    predictions = _made_up_predictions(row)
    value = float(compute(predictions))
    if not math.isfinite(value):
        yield f"must be finite ({value})"
    if float(compute(predictions)) != value:
        yield "the same predictions give another number; a metric draws no random numbers and keeps nothing"


def _made_up_predictions(row: MetricRow) -> Predictions:
    """Return predictions of random samples, most of them correct, with the columns of a metric; none can be written."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, len(CLASSES), PREDICTIONS)
    logits = generator.normal(size=(PREDICTIONS, len(CLASSES)))
    logits[np.arange(PREDICTIONS), labels] += 1
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    columns = {}
    for name in row.columns:
        columns[name] = logits if name == "logits" else np.abs(generator.normal(size=PREDICTIONS))
    ids = [f"{number}.jpg" for number in range(PREDICTIONS)]
    predictions = Predictions.of(ids, labels, probabilities.astype(np.float32), columns)
    for array in (predictions.labels, predictions.predicted, predictions.confidence, *columns.values()):
        array.flags.writeable = False
    return predictions


# ------------------------------------------------------------ samplers


def _problems_of_sampler(name: str) -> Generator[str]:
    made_up = _study("random", [])
    records = [_ended(made_up.ask()) for _ in range(TRIALS)]
    for count in (0, TRIALS):
        study = _study(name, records[:count])
        ended = _ended(study.ask())
        study.tell(ended)
        undisturbed = study.ask()
        resumed = _study(name, [*records[:count], ended])
        if resumed.ask() != undisturbed:
            yield "draws another point from the same trials; only its seed and the study may decide"


def _study(sampler: str, records: list[TrialRecord]) -> SweepStudy:
    space = parse_space(SPACE, "made-up space", [f"search.sampler={sampler}", "search.include_published=false"])
    return SweepStudy(space, records=records)


def _ended(suggestion: Suggestion) -> TrialRecord:
    """Return a trial with random values, as it ends."""
    number = suggestion.number
    record = TrialRecord(name=trial_name(number), kind="trial", state="complete", number=number)
    record = replace(record, params=suggestion.settings, constraints={"made-up": 1.0 if number in BROKEN else -1.0})
    if number in FAILED:
        return replace(record, state="failed")
    generator = random.Random(number)
    return replace(record, values=[generator.uniform(0, 100), generator.uniform(0, 100)])
