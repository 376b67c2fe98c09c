"""Chunks of cached features: files of up to 64 samples, each named by its samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fpp_sweep.spec import keys

CHUNK = 64  # samples: 4 MB on disk at 64 views of 512 half-precision numbers, and what a killed run loses at most
SUFFIX = ".safetensors"

_open: Any = safe_open  # it has no types


class DamagedChunk(Exception):
    """A file with a chunk's name but wrong contents; the message says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A sample whose image could not be read."""

    sample_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """The features of consecutive samples of a dataset, in memory or mapped from a file."""

    features: Any  # (n, views, D): an array, or a slice of a mapped file, which is read when it is indexed
    readable: NDArray[np.bool_]  # (n,), False where the image could not be read
    skipped: tuple[Skipped, ...]  # the samples that are not readable, in order

    @classmethod
    def read(cls, path: Path) -> Chunk:
        """Map a chunk's file, which may be removed afterwards; raise DamagedChunk for wrong contents."""
        try:
            file = _open(path, framework="np")
            metadata: dict[str, str] = file.metadata() or {}
            if metadata.get("format") != keys.FEATURES:
                raise DamagedChunk("does not hold features in the form of this version")
            return cls(
                features=file.get_slice("features"),
                readable=file.get_tensor("kept"),
                skipped=tuple(Skipped(**sample) for sample in json.loads(metadata["skipped"])),
            )
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedChunk(f"cannot be read ({error})") from None

    def to_bytes(self) -> bytes:
        """Return the contents of the chunk's file."""
        skipped = json.dumps([asdict(sample) for sample in self.skipped])
        return save({"features": self.features, "kept": self.readable}, {"format": keys.FEATURES, "skipped": skipped})


def chunk_name(number: int, samples: Iterable[tuple[str, str]]) -> str:
    """Return the name of the file of a dataset's chunk `number`, from sample ids and fingerprints of their images."""
    digest = hashlib.sha256(json.dumps(list(samples)).encode()).hexdigest()
    return f"{number:05d}-{digest[:16]}{SUFFIX}"
