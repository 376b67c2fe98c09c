"""Parameters of a test that has a short form, run by the README's command, and a long form, run by `.ci/nightly`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

MARKS = (pytest.mark.slow, pytest.mark.nightly)


def short_and_long(values: Iterable[Any], is_short: Callable[[Any], bool]) -> list[Any]:
    """Return all values in their order as parameters; those of the long form have the marks of slow tests."""
    parameters = []
    for value in values:
        parameters.append(value if is_short(value) else pytest.param(value, marks=MARKS))
    return parameters
