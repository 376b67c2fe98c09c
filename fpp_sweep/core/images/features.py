"""Image features of all views of a dataset: taken from the cache, and computed where they are missing.

The features of an image are the same bits however a run is cut: its position in its chunk decides its row in the image
tower's batch, and every batch has the same size, also at the end of a chunk. They do not depend on the number of
processes, on what else is cached, or on whether the run was on a dataset's first samples or on all of them.

The cache has a file for each chunk of a dataset's samples:

    <root>/features/<entry>/manifest.json    the settings of the entry, for people and for the cache command
    <root>/features/<entry>/00003-<samples>.safetensors    the features of chunk 3
    <root>/features/<entry>/00003.lock       while a process computes chunk 3; the kernel frees a dead process's lock

An entry's name says how features are computed (keys.name_of_features), a chunk's name which samples it holds. So a run
on a dataset's first samples and a run on all of them share every full chunk. Any file may be removed at any time: a
chunk that is open stays readable, and a run that fills an entry makes its folder again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute import computing, run_in_batches
from fpp_sweep.core.datasets import Dataset
from fpp_sweep.core.images.reading import ImageLoader, Reader, Request
from fpp_sweep.core.images.views import as_tower_input
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import MANIFEST, LockHeldError, exclusive_lock, written_whole
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import StagePrecision

CHUNK = 64  # samples: 4 MB on disk at 64 views of 512 half-precision numbers, and what a killed run loses at most
UNREADABLE = SafetensorError, OSError, ValueError, KeyError, TypeError  # errors of `read_chunk` for damaged files

_open: Any = safe_open  # it has no types


def read_chunk(path: Path) -> Any:
    """Map features (n, views, D), read where they are indexed, of a file that may be removed afterwards.

    Raise one of UNREADABLE for wrong contents.
    """
    return _open(path, framework="np").get_slice("features")


def describe(entry: Path, settings: Mapping[str, object]) -> None:
    """Write the manifest of an entry, or note this use of the entry in the manifest's modification time."""
    path = entry / MANIFEST
    if path.exists():
        with suppress(OSError):  # another user's cache, or a read-only one
            os.utime(path)
        return
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = json.dumps({"format": keys.FEATURES, **settings, "created": created}, indent=1)
    with usable(entry), written_whole(path) as partial:
        partial.write_text(f"{manifest}\n")


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raise the InputError that an error of the system means: a full or read-only disk, or one without locks."""
    advice = "keep the cache elsewhere with --set work.cache=DIR"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            prune = "free some with `fpp-sweep cache prune`"
            raise InputError(f"{path}: no space left for features; {prune}, or {advice}") from error
        reason = error.strerror or error
        raise InputError(f"{path}: the feature cache cannot be used ({reason}); {advice}") from error


BATCH = 256  # views that go through the image tower at once: 150 MB of pixels at 224
BYTES_PER_PIXEL = 200  # of a view in the image tower: 10 MB at 224 pixels, as in ViT-B/16


class Features:
    """The features of a dataset's views, mapped from disk; only the requested part is in memory."""

    def __init__(self, chunks: Mapping[int, Any], *, exact: bool, cost: Mapping[str, float]) -> None:
        """Take the mapped files of chunks by number, and the cost of those that were computed."""
        self.cost = cost  # images, and seconds by stage
        self._chunks = chunks
        self._exact = exact

    def of(self, indices: NDArray[np.int64]) -> Tensor:
        """Return (n, views, D) unit features in float32 of samples by their indices."""
        rows = [self._chunks[index // CHUNK][index % CHUNK] for index in indices.tolist()]
        features = torch.from_numpy(np.stack(rows).astype(np.float32))
        if self._exact:
            return features
        return F.normalize(features, dim=-1)


class FeatureCache:
    """Features kept on disk: in half precision, or in float32 where every bit counts."""

    def __init__(self, root: Path, *, exact: bool = False) -> None:
        self.root = root
        self.exact = exact
        self._loaders: dict[tuple[int, bool], ImageLoader] = {}  # by processes, and whether they read for a GPU

    def features(
        self,
        clip: Clip,
        dataset: Dataset,
        config: ViewConfig,
        seed: int,
        *,
        precision: StagePrecision = "float32",
        samples: Iterable[int] | None = None,
        workers: int = 0,
        batch: int = BATCH,
        progress: Bar | None = None,
    ) -> Features:
        """Return features of all views of a dataset; compute those that are not cached.

        With `samples`, some indices, only the chunks that hold these samples are computed and opened. `batch` is a
        number of views. `workers` processes read images and render views. Raise InputError for an image that cannot be
        read.
        """
        if not len(dataset):
            raise InputError(f"{dataset.name}, split {dataset.split}: no images")
        reader = Reader.of(dataset, config, clip.preprocess, seed)
        filling = _Filling(
            entry=self._entry(clip, reader, precision),
            ids=dataset.ids,
            names=_chunk_names(dataset, range(len(dataset)) if samples is None else samples),
            reader=reader,
            loader=self._loader(workers, clip),
            clip=clip,
            precision=precision,
            images=images_per_batch(config.count, batch),
            exact=self.exact,
            progress=progress or Bar("features", len(dataset), shown=False),
        )
        filling.run()
        return Features(filling.chunks, exact=self.exact, cost=filling.cost())

    def _loader(self, workers: int, clip: Clip) -> ImageLoader:
        key = workers, clip.device.type == "cuda"
        if key not in self._loaders:
            self._loaders[key] = ImageLoader(workers, pin=key[1])
        return self._loaders[key]

    def _entry(self, clip: Clip, reader: Reader, precision: StagePrecision) -> Path:
        """Return the folder of the features, with its manifest."""
        settings = {
            "image_digest": clip.image_digest,  # the image tower's weights and preprocessing
            "dataset": reader.dataset,
            "split": reader.split,
            "count": reader.config.count,
            "min_area": reader.config.min_area,
            "max_area": reader.config.max_area,
            "augmix": reader.augmix,
            "flip": reader.flip,
            "seed": reader.seed,
            "dtype": "float32" if self.exact else "float16",
            "compute": f"{precision} on {clip.device.type}",  # devices of several kinds give other last bits
        }
        entry = self.root / "features" / keys.name_of_features(settings)
        describe(entry, {"model": clip.name, **settings})
        return entry


def images_per_batch(views: int, batch: int = BATCH) -> int:
    """Return how many images, with this number of views each, go through the image tower together.

    A batch of fewer images is filled up, and so takes as long.
    """
    return max(1, min(batch // views, CHUNK))


def tower_bytes_per_view(clip: Clip) -> int:
    """Return an estimate of the memory that a view needs in the image tower."""
    return BYTES_PER_PIXEL * clip.preprocess.size**2


def _samples_of_chunk(number: int) -> slice:
    return slice(number * CHUNK, (number + 1) * CHUNK)


def _chunk_names(dataset: Dataset, samples: Iterable[int]) -> dict[int, str]:
    """Return the file names of the chunks that hold these samples, by number; images may change from now on.

    A name is made from sample ids and fingerprints of their images.
    """
    names = {}
    for number in sorted({sample // CHUNK for sample in samples}):
        ids = dataset.ids[_samples_of_chunk(number)]
        fingerprints = [(sample_id, dataset.source.fingerprint(sample_id)) for sample_id in ids]
        digest = hashlib.sha256(json.dumps(fingerprints).encode()).hexdigest()
        names[number] = f"{number:05d}-{digest[:16]}.safetensors"
    return names


@dataclass(slots=True, kw_only=True, eq=False)
class _Filling:
    """One run over the requested chunks of an entry: finds those on disk, computes and writes the others."""

    entry: Path
    ids: Sequence[str]  # of all samples of the dataset
    names: dict[int, str]  # files of the requested chunks, by number
    reader: Reader
    loader: ImageLoader
    clip: Clip
    precision: StagePrecision
    images: int  # in a batch of the image tower
    exact: bool
    progress: Bar
    chunks: dict[int, Any] = field(default_factory=dict)  # mapped files of the chunks that are on disk, by number
    locks: dict[int, ExitStack] = field(default_factory=dict)  # of the chunks that this run computes, in order
    images_computed: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by stage

    def run(self) -> None:
        """Collect the requested chunks."""
        missing = [number for number in self.names if not self._take_cached(number)]
        for wait in (False, True):  # first the chunks that no other process computes
            missing = [number for number in missing if number not in self.chunks]
            if missing:
                self._compute_missing(missing, wait=wait)

    def cost(self) -> dict[str, float]:
        """Return images and seconds by stage of what was computed; empty if all was cached."""
        if not self.images_computed:
            return {}
        return {"images": float(self.images_computed), **self.seconds}

    def _ids(self, number: int) -> Sequence[str]:
        return self.ids[_samples_of_chunk(number)]

    def _take_cached(self, number: int) -> bool:
        """Take a chunk from disk; return False if there is none."""
        path = self.entry / self.names[number]
        try:
            self.chunks[number] = read_chunk(path)
        except FileNotFoundError:
            return False
        except UNREADABLE as error:
            self.progress.note(f"{path}: cannot be read ({error}); its features are computed again")
            with suppress(OSError):  # the cache may be read-only
                path.unlink()
            return False
        self.progress.add_cached(len(self._ids(number)))
        return True

    def _compute_missing(self, missing: Sequence[int], *, wait: bool) -> None:
        """Compute and write chunks; without `wait`, only those that no other process is computing."""
        results = self._timed("reading and rendering", self.loader.read(self._requests(missing, wait=wait)))
        began, seconds_before = perf_counter(), sum(self.seconds.values())
        try:
            for first in results:
                number = next(iter(self.locks))  # of the oldest lock: a chunk is locked when it is first requested
                features = self._compute(len(self._ids(number)), chain([first], results))
                write_began, path = perf_counter(), self.entry / self.names[number]
                with usable(path.parent), written_whole(path) as partial:
                    partial.write_bytes(save({"features": features}))
                self.chunks[number] = read_chunk(path)
                self.seconds["disk"] += perf_counter() - write_began
                self.locks.pop(number).close()
        finally:
            while self.locks:
                self.locks.popitem()[1].close()
        in_other_stages = sum(self.seconds.values()) - seconds_before  # reading and disk, which are timed themselves
        self.seconds["tower"] += perf_counter() - began - in_other_stages

    def _requests(self, missing: Sequence[int], *, wait: bool) -> Iterator[Request]:
        """Lock one missing chunk after the other, and request its images, some of them ahead of the tower.

        Processes lock chunks in ascending order, so none waits for another one that waits for it.
        """
        for number in missing:
            lock, path = ExitStack(), self.entry / f"{number:05d}.lock"
            try:
                with usable(path):
                    lock.enter_context(exclusive_lock(path, wait=wait))
            except LockHeldError:
                continue
            lock.callback(path.unlink, missing_ok=True)
            self.locks[number] = lock
            if self._take_cached(number):  # another process has finished it meanwhile
                self.locks.pop(number).close()
                continue
            for sample_id in self._ids(number):
                yield self.reader, sample_id

    def _compute(self, size: int, results: Iterator[Tensor]) -> NDArray[Any]:
        """Return the features of a chunk; the views of its images are the next of the iterator."""
        images, count, side = self.images, self.reader.config.count, self.reader.preprocess.size
        views_at_once = self.clip.text.memory.batch_size(images * count, tower_bytes_per_view(self.clip))
        pixels = torch.zeros(images, count, 3, side, side, device=self.clip.device)
        blocks: list[Tensor] = []
        for start in range(0, size, images):
            batch = min(images, size - start)
            for row, views in enumerate(islice(results, batch)):
                pixels[row] = as_tower_input(views.to(pixels.device, non_blocking=True), self.reader.preprocess)
            # every batch has the same size: rows without an image hold zeros or views of an earlier batch
            features = run_in_batches(self._tower_features, pixels.flatten(0, 1), views_at_once)
            blocks.append(features.view(images, count, -1)[:batch])
            self.images_computed += batch
            self.progress.advance(batch)
        features = torch.cat(blocks).cpu()  # waits for a GPU once in a chunk
        if not features.isfinite().all():
            raise FloatingPointError(f"{self.clip.name}: the image tower gave features that are not finite")
        values = features.numpy()
        if not self.exact:
            values = values.astype(np.float16)
        return values

    def _tower_features(self, pixels: Tensor) -> Tensor:
        """Return (N, D) features of (N, 3, size, size) views."""
        with computing(self.precision, self.clip.device):
            return self.clip.image_features(pixels)

    def _timed(self, stage: str, results: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield the same results, and count the seconds that they are waited for."""
        while True:
            began = perf_counter()
            result = next(results, None)
            self.seconds[stage] += perf_counter() - began
            if result is None:
                return
            yield result
