"""The order of a dataset's samples by a hash of their names, which is fair to all classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def fair_order(dataset: str, ids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Positions of the samples sorted by a hash of their names, and the beginnings of the sorted hashes."""
    keys = [hashlib.sha256(f"{dataset}/{sample}".encode()).digest() for sample in ids]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    return order, np.array([int.from_bytes(keys[index][:8], "big") for index in order], np.uint64)
