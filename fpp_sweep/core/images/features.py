"""Image features of all views of a dataset: taken from the cache, and computed where they are missing.

The features of an image are the same bits however a run is cut: its position in its chunk decides its row in the image
tower's batch, and every batch has the same size, also at the end of a chunk. They do not depend on the number of
workers, on what else is cached, or on whether the run was on a dataset's first samples or on all of them.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fpp_sweep.core.compute.memory import run_in_batches
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import BadImageError, Dataset
from fpp_sweep.core.images.cache import Entry, open_entry
from fpp_sweep.core.images.chunks import (
    CHUNK,
    Chunk,
    Skipped,
    chunk_path,
    find_chunk,
    remove_superseded,
    sample_digests,
)
from fpp_sweep.core.images.reading import Reader, ReadResult, UnreadableImage, dead_process_as_machine_error, read_views
from fpp_sweep.core.images.views import as_tower_input
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import FeatureKey
from fpp_sweep.spec.progress import LOG_INTERVAL, Bar, time_shares
from fpp_sweep.spec.specs import OnBadImage, StagePrecision

BATCH = 256  # views that go through the image tower at once: 150 MB of pixels at 224
OUTPUTS_HELD = 4.0  # estimated memory of a view in the image tower, in sizes of the largest output of a layer

_log = logging.getLogger(__name__)


class Features:
    """The features of a dataset's views, mapped from disk; only the requested part is in memory."""

    def __init__(self, chunks: Mapping[int, Chunk], *, exact: bool, cost: Mapping[str, float] | None = None) -> None:
        """Take chunks by number, in order, and the cost of those that were computed: images, and seconds by stage."""
        self.cost = cost or {}
        self._chunks = chunks
        self._exact = exact
        parts = [number * CHUNK + np.flatnonzero(chunk.readable) for number, chunk in chunks.items()]
        self.sample_indices: NDArray[np.int64] = np.concatenate(parts)  # indices of samples that have features
        self.skipped: tuple[Skipped, ...] = tuple(chain.from_iterable(chunk.skipped for chunk in chunks.values()))

    def __len__(self) -> int:
        return len(self.sample_indices)

    def of(self, indices: NDArray[np.int64]) -> Tensor:
        """Return (n, views, D) unit features in float32 of samples that have features, by their indices."""
        numbers = indices // CHUNK
        positions: list[NDArray[np.int64]] = []  # in `indices`, chunk by chunk
        blocks: list[NDArray[np.generic]] = []
        for number in np.unique(numbers).tolist():
            in_chunk = np.flatnonzero(numbers == number)
            rows = indices[in_chunk] - number * CHUNK
            first, last = rows.min(), rows.max()
            span = self._chunks[number].features[first : last + 1]  # one read of a mapped file
            positions.append(in_chunk)
            blocks.append(span[rows - first])
        if not blocks:  # no samples, but the right number of views and D
            any_chunk = next(iter(self._chunks.values()))
            return torch.from_numpy(any_chunk.features[:0].astype(np.float32))
        order = np.concatenate(positions).argsort()
        features = torch.from_numpy(np.concatenate(blocks)[order].astype(np.float32))
        if self._exact:
            return features
        return F.normalize(features, dim=-1)


class FeatureCache:
    """Features kept on disk: in half precision, or in float32 where every bit counts."""

    def __init__(self, root: Path, *, exact: bool = False) -> None:
        self.root = root
        self.exact = exact

    def features(
        self,
        clip: Clip,
        dataset: Dataset,
        config: ViewConfig,
        seed: int,
        *,
        precision: StagePrecision = "float32",
        samples: Iterable[int] | None = None,
        on_bad_image: OnBadImage = "fail",
        workers: int = 0,
        batch: int = BATCH,
        progress: Bar | None = None,
    ) -> Features:
        """Return features of all views of a dataset; compute those that are not cached.

        With `samples`, some indices, only the chunks that hold these samples are computed and opened. `batch` is a
        number of views. `workers` processes read images and render views. An image that cannot be read fails the run
        or is skipped; an image that an earlier run has skipped is tried again.
        """
        if not len(dataset):
            raise InputError(f"{dataset.name}, split {dataset.split}: no images")
        reader = Reader.of(dataset, config, clip.preprocess, seed)
        key = self._key(clip, reader, precision)
        with open_entry(self.root, key.name()) as entry:
            entry.describe({"model": clip.name, **asdict(key)})
            filling = _Filling(
                entry=entry,
                reader=reader,
                tower=_BatchedTower.of(clip, precision, images_per_batch(config.count, batch), config.count),
                digests=_chunk_digests(dataset, samples),
                exact=self.exact,
                workers=workers,
                on_bad_image=on_bad_image,
                progress=progress,
            )
            chunks = filling.run()
            return Features(chunks, exact=self.exact, cost=filling.cost())

    def _key(self, clip: Clip, reader: Reader, precision: StagePrecision) -> FeatureKey:
        dtype = "float16"
        if self.exact:
            dtype = "float32"
        return FeatureKey(
            image_digest=clip.image_digest,
            dataset=reader.dataset.name,
            split=reader.dataset.split,
            count=reader.config.count,
            min_area=reader.config.min_area,
            max_area=reader.config.max_area,
            augmix=reader.augmix,
            flip=reader.flip,
            seed=reader.seed,
            dtype=dtype,
            compute=arithmetic_label(precision, clip.device) + clip.arithmetic_suffix,
        )


def images_per_batch(views: int, batch: int = BATCH) -> int:
    """Return how many images, with this number of views each, go through the image tower together.

    A batch of fewer images is filled up, and so takes as long.
    """
    return max(1, min(batch // views, CHUNK))


# by image tower; a model that is loaded again must not keep the old one in the GPU's memory
_bytes_per_view: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def tower_bytes_per_view(clip: Clip) -> float:
    """Return the memory that a view needs in the image tower, measured once for a tower; 0 if memory is unlimited."""
    if math.isinf(clip.text.memory.device):
        return 0.0
    if clip.visual not in _bytes_per_view:
        _bytes_per_view[clip.visual] = _measure_bytes_per_view(clip)
    return _bytes_per_view[clip.visual]


def _measure_bytes_per_view(clip: Clip) -> float:
    """Estimate the memory that a view needs in the image tower from its largest output of a layer."""
    largest = 0

    def measure(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.nbytes)

    size = clip.preprocess.size
    with torch.no_grad(), ExitStack() as hooks:
        for module in clip.visual.modules():
            hooks.callback(module.register_forward_hook(measure).remove)
        clip.visual(torch.zeros(1, 3, size, size, device=clip.device))
    return OUTPUTS_HELD * largest


def arithmetic_label(precision: StagePrecision, device: torch.device) -> str:
    """Return how a feature key names the image tower's arithmetic: devices of several kinds give other last bits."""
    return f"{precision} on {device.type}"


def _samples_of_chunk(number: int) -> slice:
    return slice(number * CHUNK, (number + 1) * CHUNK)


def _chunk_digests(dataset: Dataset, samples: Iterable[int] | None) -> dict[int, NDArray[np.uint8]]:
    """Return the digests of all samples of each chunk that holds some of `samples`, by the chunk's number.

    None means all samples.
    """
    if samples is None:
        samples = range(len(dataset))
    numbers = {sample // CHUNK for sample in samples}
    digests = {}
    for number in sorted(numbers):
        ids = dataset.ids[_samples_of_chunk(number)]
        digests[number] = sample_digests((sample_id, dataset.fingerprint(sample_id)) for sample_id in ids)
    return digests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _BatchedTower:
    """An image tower whose batches have one size; where memory is short, a batch goes through it in parts."""

    clip: Clip
    precision: StagePrecision
    images: int  # in a batch
    views_at_once: int

    @classmethod
    def of(cls, clip: Clip, precision: StagePrecision, images: int, views: int) -> _BatchedTower:
        views_at_once = clip.text.memory.batch_size(images * views, tower_bytes_per_view(clip))
        return cls(clip=clip, precision=precision, images=images, views_at_once=views_at_once)

    def features(self, pixels: Tensor) -> Tensor:
        """Return (N, D) features of (N, 3, size, size) views."""
        return run_in_batches(self._features_of_part, pixels, self.views_at_once)

    def _features_of_part(self, pixels: Tensor) -> Tensor:
        with computing(self.precision, self.clip.device):
            return self.clip.image_features(pixels)


class _ChunkLocks:
    """The locks of the chunks that this process computes, the oldest first."""

    def __init__(self, entry: Entry, stack: ExitStack) -> None:
        """Take the stack that frees the locks which are still held when it ends."""
        self._entry = entry
        self._stack = stack
        self._held: dict[int, ExitStack] = {}  # by number of the chunk

    def acquire(self, number: int) -> bool:
        """Lock a chunk; return False if another process is computing it."""
        lock = self._stack.enter_context(ExitStack())
        if not lock.enter_context(self._entry.lock(number, blocking=False)):
            return False
        self._held[number] = lock
        return True

    def release(self, number: int) -> None:
        self._held.pop(number).close()

    @property
    def oldest(self) -> int:
        return next(iter(self._held))


@dataclass(slots=True, kw_only=True, eq=False)
class _Filling:
    """One run over the requested chunks of an entry: finds those on disk, computes and writes the others."""

    entry: Entry
    reader: Reader
    tower: _BatchedTower
    digests: dict[int, NDArray[np.uint8]]  # (n, 16) of each requested chunk, by its number
    exact: bool
    workers: int
    on_bad_image: OnBadImage
    progress: Bar | None
    chunks: dict[int, Chunk] = field(default_factory=dict)  # chunks that are on disk
    notes: set[str] = field(default_factory=set)
    images_computed: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by stage

    def run(self) -> dict[int, Chunk]:
        """Return all requested chunks, in order."""
        began = perf_counter()
        missing = [number for number in self.digests if not self._take_cached(number)]
        if missing:
            self.entry.clean()
        while missing:
            self._compute_unlocked(missing)
            missing = [number for number in missing if number not in self.chunks]
            if missing:
                # other processes compute these: wait for the first, with no lock held meanwhile, then look again
                with self.entry.lock(missing[0], blocking=True):
                    pass
        if self.progress and perf_counter() - began > LOG_INTERVAL and self.seconds:
            self.progress.note(f"image features: time went to {time_shares(self.seconds)}")
        return dict(sorted(self.chunks.items()))

    def cost(self) -> dict[str, float]:
        """Return images and seconds by stage of what was computed; empty if all was cached."""
        if not self.images_computed:
            return {}
        return {"images": float(self.images_computed), **self.seconds}

    def _take_cached(self, number: int) -> bool:
        """Take a chunk from disk; return False if there is none, or if it lacks an image that can be read by now."""
        digests = self.digests[number]
        chunk = find_chunk(self.entry.folder, number, digests, self._note_once)
        if chunk is None or any(self._can_be_read(sample.sample_id) for sample in chunk.skipped):
            return False
        self.chunks[number] = chunk
        if self.progress:
            self.progress.add_cached(len(digests))
        return True

    def _can_be_read(self, sample_id: str) -> bool:
        """Return True if an image that was skipped can be read by now; where bad images fail the run, raise if not."""
        try:
            self.reader.dataset.source.image(sample_id)
        except BadImageError as error:
            self._fail_or_skip(str(error))
            return False
        return True

    def _compute_unlocked(self, missing: Sequence[int]) -> None:
        """Compute the chunks that no other process is computing."""
        with ExitStack() as stack:
            locks = _ChunkLocks(self.entry, stack)
            indices = self._lock_chunks(missing, locks)
            first = next(indices, None)
            if first is not None:  # else there is nothing to read, and no workers start
                self._compute_locked(chain([first], indices), locks)

    def _lock_chunks(self, missing: Sequence[int], locks: _ChunkLocks) -> Iterator[int]:
        """Lock one chunk after the other; yield the indices of their samples.

        A chunk is locked when its first index is requested. Workers read ahead of the tower, so that the next chunk
        may be locked while one is computed.
        """
        all_indices = range(len(self.reader.dataset))
        for number in missing:
            if not locks.acquire(number):
                continue
            if self._take_cached(number):  # another process has finished it meanwhile
                locks.release(number)
            else:
                yield from all_indices[_samples_of_chunk(number)]

    def _compute_locked(self, indices: Iterator[int], locks: _ChunkLocks) -> None:
        """Compute and write the chunks of these indices.

        Requesting an index locks its chunk (`_lock_chunks`). So once the first result of a chunk has been read, its
        lock is the oldest.
        """
        pin = self.tower.clip.device.type == "cuda"
        loader = read_views(self.reader, indices, workers=self.workers, pin=pin)
        results = self._timed("reading and rendering", loader)
        began, seconds_before = perf_counter(), sum(self.seconds.values())
        with dead_process_as_machine_error(loader):
            for first_result in results:
                number = locks.oldest
                chunk = self._compute(number, chain([first_result], results))
                self._write(number, chunk)
                locks.release(number)
        in_other_stages = sum(self.seconds.values()) - seconds_before  # reading and disk, which are timed themselves
        self.seconds["tower"] += perf_counter() - began - in_other_stages

    def _compute(self, number: int, results: Iterator[ReadResult]) -> Chunk:
        """Compute a chunk; take the results of its samples from the iterator, which goes on with the next chunk."""
        ids = self.reader.dataset.ids[_samples_of_chunk(number)]
        images = self.tower.images  # in a batch
        count, size = self.reader.config.count, self.reader.preprocess.size
        pixels = torch.zeros(images, count, 3, size, size, device=self.tower.clip.device)
        readable = np.zeros(len(ids), np.bool_)
        skipped: list[Skipped] = []
        blocks: list[Tensor] = []
        for start in range(0, len(ids), images):
            batch_ids = ids[start : start + images]
            views_by_row = self._take_batch(batch_ids, results, skipped)
            for row in views_by_row:
                readable[start + row] = True
            for row, views in views_by_row.items():
                pixels[row] = as_tower_input(views.to(pixels.device, non_blocking=True), self.reader.preprocess)
            # every batch has the same size: rows without a readable image hold zeros or views of an earlier batch, and
            # their features are dropped here or set to zero below
            features = self.tower.features(pixels.flatten(0, 1))
            blocks.append(features.view(images, count, -1)[: len(batch_ids)])
            self.images_computed += len(batch_ids)
            if self.progress:
                self.progress.advance(len(batch_ids))
        return self._make_chunk(number, torch.cat(blocks).cpu(), readable, skipped)  # waits for a GPU once in a chunk

    def _take_batch(
        self, ids: Sequence[str], results: Iterator[ReadResult], skipped: list[Skipped]
    ) -> dict[int, Tensor]:
        """Take what was read of some samples; return their views by row, and add unreadable images to `skipped`."""
        views_by_row: dict[int, Tensor] = {}
        for row, result in enumerate(islice(results, len(ids))):
            if isinstance(result, UnreadableImage):
                self._fail_or_skip(result.reason)
                skipped.append(Skipped(sample_id=ids[row], reason=result.reason))
            else:
                views_by_row[row] = result
        return views_by_row

    def _make_chunk(self, number: int, features: Tensor, readable: NDArray[np.bool_], skipped: list[Skipped]) -> Chunk:
        if not features.isfinite().all():
            raise FloatingPointError(f"{self.tower.clip.name}: the image tower gave features that are not finite")
        features[torch.from_numpy(~readable)] = 0
        values = features.numpy()
        if not self.exact:
            values = values.astype(np.float16)
        return Chunk(digests=self.digests[number], features=values, readable=readable, skipped=tuple(skipped))

    def _timed(self, stage: str, results: Iterator[ReadResult]) -> Iterator[ReadResult]:
        """Yield the same results, and count the seconds that they are waited for."""
        while True:
            began = perf_counter()
            result = next(results, None)
            self.seconds[stage] += perf_counter() - began
            if result is None:
                return
            yield result

    def _write(self, number: int, chunk: Chunk) -> None:
        """Put a chunk on disk, and keep a map of its file instead of the chunk in memory."""
        path = chunk_path(self.entry.folder, number, chunk.digests)
        began = perf_counter()
        self.entry.write(path, chunk.to_bytes(), left=len(self.digests) - len(self.chunks) - 1)
        self.seconds["disk"] += perf_counter() - began
        remove_superseded(self.entry.folder, number, chunk.digests)
        self.chunks[number] = Chunk.read(path)

    def _fail_or_skip(self, reason: str) -> None:
        if self.on_bad_image == "fail":
            raise InputError(f"{reason}; repair or remove the image, or skip it with --set work.on_bad_image=skip")

    def _note_once(self, line: str) -> None:
        """Show a line once, though a chunk may be looked for several times."""
        if line in self.notes:
            return
        self.notes.add(line)
        if self.progress:
            self.progress.note(line)
        else:
            _log.warning(line)
