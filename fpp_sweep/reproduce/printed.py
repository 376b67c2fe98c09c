"""The paper's numbers as they are printed, and the model that they are about.

The last digit of a printed number says how far it was rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fpp_sweep.core.models.names import QUICK_SUFFIX, parse
from fpp_sweep.spec.validation import as_mapping, require

AVERAGE = "average"
PAPERS_MODEL = "ViT-B-16"  # the architecture behind the printed numbers
PAPERS_TAG = "openai"  # its weights
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")


@dataclass(frozen=True, slots=True)
class PrintedNumber:
    """A printed number with half a unit of its last digit."""

    text: str
    value: float
    rounding: float

    @classmethod
    def of_text(cls, text: str) -> PrintedNumber:
        """Read a number as it is printed.

        >>> PrintedNumber.of_text("8.50").rounding, PrintedNumber.of_text("23.9").rounding
        (0.005, 0.05)
        """
        decimals = len(text.partition(".")[2])
        return cls(text, float(text), float(0.5 * 10.0**-decimals))


def mean_of_printed(numbers: Sequence[PrintedNumber]) -> PrintedNumber:
    """Return the mean of printed numbers, with the largest error that their rounding can give.

    >>> mean_of_printed([PrintedNumber.of_text("4.00"), PrintedNumber.of_text("5.1")])
    PrintedNumber(text='4.55', value=4.55, rounding=0.0275)
    """
    values = []
    roundings = []
    decimals = 0
    for number in numbers:
        values.append(number.value)
        roundings.append(number.rounding)
        decimals = max(decimals, len(number.text.partition(".")[2]))
    value = math.fsum(values) / len(values)
    return PrintedNumber(f"{value:.{decimals}f}", value, math.fsum(roundings) / len(roundings))


def read_printed(value: Any) -> dict[str, dict[str, PrintedNumber | None]]:
    """Return printed numbers by column and dataset; a number without a dataset is the average."""
    printed: dict[str, dict[str, PrintedNumber | None]] = {}
    for column, numbers in as_mapping(value).items():
        by_dataset = numbers
        if not isinstance(numbers, Mapping):
            by_dataset = {AVERAGE: numbers}
        printed[column] = {}
        for dataset, number in by_dataset.items():
            printed[column][dataset] = _read_number(number, f"{column}.{dataset}")
    return printed


def _read_number(value: Any, key: str) -> PrintedNumber | None:
    if value is None or isinstance(value, PrintedNumber):
        return value
    require(_NUMBER.fullmatch(str(value)), f"must be a number ({value})", key)
    return PrintedNumber.of_text(str(value))


def is_papers_model(model: str) -> bool:
    """Return True for ViT-B/16 with OpenAI's weights, from the hub or a file.

    A file is OpenAI's by its name, or because the user says that it has OpenAI's activation.

    >>> [is_papers_model(name) for name in ("ViT-B-16/openai", "ViT-B-16-quickgelu:/data/ViT-B-16.pt", "tiny")]
    [True, True, False]
    >>> [is_papers_model(f"ViT-B-16+{rest}") for rest in ("quickgelu:b16.pt", "gelu:ViT-B-16.pt")]
    [True, False]
    """
    spec = parse(model)
    if spec.architecture.removesuffix(QUICK_SUFFIX) != PAPERS_MODEL or spec.activation == "gelu":
        return False
    if spec.path is not None:
        return spec.activation == "quick_gelu" or spec.path.name == f"{PAPERS_MODEL}.pt"
    return spec.tag == PAPERS_TAG
