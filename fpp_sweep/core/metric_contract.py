"""The contract of a plugin's metric, checked on made-up predictions before the first trial.

A metric draws no random numbers, writes to nothing that it is given, and ends in time.
"""

from __future__ import annotations

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
        note(f"{error}, on made-up predictions")
        return
    if first != second and not (np.isnan(first) and np.isnan(second)):
        origin = plugins.origin_of(row)
        problem = f"gives {first:g} and {second:g} for the same predictions; it must not draw random numbers"
        raise ContractError(f"metric {row.name} ({origin}): {problem}")


def made_up_predictions(columns: tuple[str, ...]) -> Predictions:
    """Return predictions of random samples, most of them correct, with optional columns."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, SAMPLES)
    logits = generator.normal(size=(SAMPLES, CLASSES)).astype(np.float32)
    logits[np.arange(SAMPLES), labels] += 1
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    values = {}
    for name in columns:
        values[name] = logits if name == "logits" else np.abs(generator.normal(size=SAMPLES)).astype(np.float32)
    ids = [f"{number}.jpg" for number in range(SAMPLES)]
    return Predictions.of(ids, labels, probabilities, values)
