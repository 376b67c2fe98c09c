"""The contract of a plugin's metric, checked on made-up predictions before the first trial.

A metric draws no random numbers, writes to nothing that it is given, and ends in time.
"""

from __future__ import annotations

import contextlib

import numpy as np

from fpp_sweep.core.metrics import Predictions, plugin_metric
from fpp_sweep.spec import plugins
from fpp_sweep.spec.catalogue import MetricRow
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.plugin_guard import PluginGuard, call_in_time
from fpp_sweep.spec.plugins import ContractError

SAMPLES, CLASSES = 64, 3


def check_metric(row: MetricRow, seconds: float) -> None:
    """Raise InputError if a plugin's metric breaks the contract.

    A metric that fails gives a note only: it may need class names or images that made-up predictions lack.
    """
    predictions = made_up_predictions(row.columns)
    guard = PluginGuard()

    def compute_twice() -> tuple[float, float]:
        with guard.around(row):  # around both: it restores random states
            return plugin_metric(row, predictions), plugin_metric(row, predictions)

    try:
        first, second = call_in_time(compute_twice, seconds, f"metric {row.name}")
    except ContractError:
        raise
    except InputError as error:
        note(f"{error}, on made-up predictions; a trial fails if the same happens with its own")
        return
    if first != second:
        origin = plugins.origin_of(row)
        problem = f"gives {first:g} and {second:g} for the same predictions; it must not draw random numbers"
        raise ContractError(f"metric {row.name} ({origin}): {problem}")


def bits_of_metric(row: MetricRow, after_others: bool) -> str:
    """Return a metric of made-up predictions in all digits, computed at once or after that of other predictions."""
    if after_others:
        for other in (made_up_predictions(row.columns, seed=1), made_up_predictions(row.columns, classes=5)):
            with contextlib.suppress(InputError):
                plugin_metric(row, other)
    return plugin_metric(row, made_up_predictions(row.columns)).hex()


def made_up_predictions(columns: tuple[str, ...], seed: int = 0, classes: int = CLASSES) -> Predictions:
    """Return predictions of random samples, most of them correct, with optional columns."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, SAMPLES)
    logits = generator.normal(size=(SAMPLES, classes)).astype(np.float32)
    logits[np.arange(SAMPLES), labels] += 1
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    values = {}
    for name in columns:
        if name == "logits":
            values[name] = logits
        else:
            values[name] = np.abs(generator.normal(size=SAMPLES)).astype(np.float32)
    ids = [f"{number}.jpg" for number in range(SAMPLES)]
    return Predictions.of(ids, labels, probabilities, values)
