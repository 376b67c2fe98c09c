"""Plain tables for modules that do not use the table model yet."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.report.table import Table, to_text

UNLIMITED = 10_000  # columns


def aligned(rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)) -> list[str]:
    """Return the lines of a table whose first row is the head.

    >>> print("\\n".join(aligned([["dataset", "acc"], ["dtd", "44.50"]])))
    dataset    acc
    dtd      44.50
    """
    head, *body = rows
    if not body:
        return ["  ".join(head)]
    return to_text(Table.of_strings(head, body, text_columns=words), UNLIMITED).split("\n")
