"""Chunks of cached features: files of up to 64 samples, each named by its samples and checked when it is opened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
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
# files whose checksum this process has found correct: path, inode, size and time
_verified: set[tuple[str, int, int, int]] = set()


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

    digests: NDArray[np.uint8]  # (n, 16), one for each sample
    features: Any  # (n or more, views, D): an array, or a slice of a mapped file, which is read when it is indexed
    readable: NDArray[np.bool_]  # (n,), False where the image could not be read
    skipped: tuple[Skipped, ...]  # the samples that are not readable, in order

    @classmethod
    def read(cls, path: Path) -> Chunk:
        """Map a chunk's file, which may be replaced or removed afterwards; raise DamagedChunk for wrong contents.

        A process computes the checksum of a file once, as long as the file stays the same.
        """
        try:
            status = path.stat()
            file = _open(path, framework="np")
            metadata: dict[str, str] = file.metadata() or {}
            if metadata.get("format") != keys.FEATURES or set(file.keys()) != {"digests", "features", "kept"}:
                raise DamagedChunk("does not hold features in the form of this version")
            digests = file.get_tensor("digests")
            features = file.get_slice("features")
            readable = file.get_tensor("kept")
            identity = (str(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns)
            if identity not in _verified:
                if metadata.get("checksum") != _checksum(metadata, features[:], readable, digests):
                    raise DamagedChunk("has a wrong checksum")
                _verified.add(identity)
            skipped = tuple(Skipped(**sample) for sample in json.loads(metadata["skipped"]))
        except FileNotFoundError:  # not damaged, but replaced by a longer chunk, or pruned
            raise
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedChunk(f"cannot be read ({error})") from None
        return cls(digests=digests, features=features, readable=readable, skipped=skipped)

    def to_bytes(self) -> bytes:
        """Return the contents of the chunk's file."""
        skipped = [asdict(sample) for sample in self.skipped]
        metadata = {"format": keys.FEATURES, "skipped": json.dumps(skipped)}
        metadata["checksum"] = _checksum(metadata, self.features, self.readable, self.digests)
        return save({"digests": self.digests, "features": self.features, "kept": self.readable}, metadata)

    def head(self, count: int) -> Chunk:
        """Return the first `count` samples."""
        readable = self.readable[:count]
        number_skipped = int((~readable).sum())
        return replace(self, digests=self.digests[:count], readable=readable, skipped=self.skipped[:number_skipped])


def sample_digests(samples: Iterable[tuple[str, str]]) -> NDArray[np.uint8]:
    """Return (n, 16) hashes of sample ids with the fingerprints of their images."""
    digests = [hashlib.sha256(json.dumps(sample).encode()).digest()[:16] for sample in samples]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def chunk_path(folder: Path, number: int, digests: NDArray[np.uint8]) -> Path:
    """Return the file of a dataset's chunk `number`, counted from 0, for samples with these digests."""
    return folder / f"{number:05d}-{hashlib.sha256(digests.tobytes()).hexdigest()[:16]}{SUFFIX}"


def find_chunk(folder: Path, number: int, digests: NDArray[np.uint8], report: Callable[[str], None]) -> Chunk | None:
    """Return the chunk with these samples, if it is on disk; call `report` with a line for each damaged file.

    Fewer than CHUNK samples may also be the first samples of a longer chunk, written by a run on more of the dataset.
    """
    candidates = [chunk_path(folder, number, digests)]
    if len(digests) < CHUNK:
        candidates += sorted(_files(folder, number))
    for path in dict.fromkeys(candidates):
        try:
            chunk = Chunk.read(path).head(len(digests))
        except FileNotFoundError:
            continue
        except DamagedChunk as error:
            report(f"{path}: {error}; its features are computed again")
            continue
        if np.array_equal(chunk.digests, digests):
            return chunk
    return None


def remove_superseded(folder: Path, number: int, digests: NDArray[np.uint8]) -> None:
    """Remove a written chunk's other files that are damaged or hold only the first of its samples."""
    for path in set(_files(folder, number)) - {chunk_path(folder, number, digests)}:
        try:
            shorter = Chunk.read(path).digests
        except FileNotFoundError:
            continue
        except DamagedChunk:
            shorter = digests[:0]
        if len(shorter) < len(digests) and np.array_equal(shorter, digests[: len(shorter)]):
            path.unlink(missing_ok=True)


def _files(folder: Path, number: int) -> Iterable[Path]:
    return folder.glob(f"{number:05d}-*{SUFFIX}")


def _checksum(metadata: dict[str, str], *arrays: NDArray[Any]) -> str:
    """Return a hash of everything in the file except the checksum."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([metadata["format"], metadata.get("skipped")]).encode())
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
