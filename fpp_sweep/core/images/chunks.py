"""One file of cached features: written whole or not at all, and checked when it is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

FORMAT = "fpp_sweep features 1"
SUFFIX = ".safetensors"

_open: Any = safe_open  # it has no types
_verified: set[tuple[str, int, int, int]] = set()  # files whose checksum held in this process


class DamagedShard(Exception):
    """A file where a shard belongs that is not one; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A sample whose image could not be read."""

    sample_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """What a shard holds, in memory, before it is written."""

    samples: NDArray[np.uint8]  # (n, 16), a digest for each sample
    features: NDArray[Any]  # (n, views, D)
    kept: NDArray[np.bool_]  # (n,), False where the image could not be read
    skipped: tuple[Skipped, ...]

    def serialise(self) -> bytes:
        metadata = {"format": FORMAT, "skipped": json.dumps([dataclasses.asdict(item) for item in self.skipped])}
        metadata["checksum"] = _checksum(metadata, self.features, self.kept, self.samples)
        tensors = {"features": self.features, "kept": self.kept, "samples": self.samples}
        return save(tensors, metadata)


class Shard:
    """A shard on disk, mapped: its file may be replaced or removed meanwhile.

    Opening it computes the checksum, once in each process as long as the file stays the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            status = path.stat()
            self._file: Any = _open(path, framework="np")
            metadata: dict[str, str] = self._file.metadata() or {}
            if metadata.get("format") != FORMAT or set(self._file.keys()) != {"features", "kept", "samples"}:
                raise DamagedShard("is not a feature shard")
            self.samples: NDArray[np.uint8] = self._file.get_tensor("samples")
            self.kept: NDArray[np.bool_] = self._file.get_tensor("kept")
            identity = (str(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns)
            if identity not in _verified:
                features = self._file.get_tensor("features")
                if metadata.get("checksum") != _checksum(metadata, features, self.kept, self.samples):
                    raise DamagedShard("has a wrong checksum")
                _verified.add(identity)
        except FileNotFoundError:  # not damaged: replaced by a longer one, or pruned
            raise
        except (SafetensorError, OSError) as error:
            raise DamagedShard(f"cannot be read ({error})") from None
        self.skipped = tuple(Skipped(**item) for item in json.loads(metadata["skipped"]))

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, views, D), read from the map."""
        rows: NDArray[Any] = self._file.get_slice("features")[start:stop]
        return rows


def sample_digests(samples: Sequence[tuple[str, str]]) -> NDArray[np.uint8]:
    """(n, 16): names and fingerprints of samples, hashed one by one."""
    digests = (hashlib.sha256(json.dumps(sample).encode()).digest()[:16] for sample in samples)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def _checksum(metadata: dict[str, str], *arrays: NDArray[Any]) -> str:
    """Over everything in the file but itself."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([metadata["format"], metadata.get("skipped")]).encode())
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
