"""Image features of all views of a dataset: taken from the cache, and computed where they are missing.

The features of an image are the same bits however a run is cut: its place in its chunk decides its row in the image
tower's batch, and every batch has the same size, also at the end of a chunk. They do not depend on the number of
workers, on what else is cached, or on whether the run was on a dataset's first samples or on all of them.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fpp_sweep.core.compute.compiling import eagerly
from fpp_sweep.core.compute.memory import halving
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import BadImageError, Dataset
from fpp_sweep.core.images.cache import Entry, open_entry
from fpp_sweep.core.images.choose_renderer import faster
from fpp_sweep.core.images.chunks import (
    CHUNK,
    Chunk,
    Skipped,
    chunk_path,
    find_chunk,
    remove_superseded,
    sample_digests,
)
from fpp_sweep.core.images.device_views import Drawer
from fpp_sweep.core.images.reading import Read, Reader, read, watched
from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import FeatureKey
from fpp_sweep.spec.progress import LOG, Bar, shares
from fpp_sweep.spec.specs import OnBadImage, Precision

BATCH = 256  # views that go through the image tower at once: 150 MB of pixels at 224

_log = logging.getLogger(__name__)


class Features:
    """The features of a dataset's views, mapped from disk; only what is asked for is in memory."""

    def __init__(self, chunks: Mapping[int, Chunk], *, exact: bool, cost: Mapping[str, float] | None = None) -> None:
        """`chunks` by number, in order; `cost` of what was not at hand: how many images, and seconds by step."""
        self.cost = cost or {}
        self._chunks = chunks
        self._exact = exact
        kept = [number * CHUNK + np.flatnonzero(chunk.kept) for number, chunk in chunks.items()]
        self.kept: NDArray[np.int64] = np.concatenate(kept)  # indices of the samples that have features
        self.skipped: tuple[Skipped, ...] = tuple(chain.from_iterable(chunk.skipped for chunk in chunks.values()))

    def __len__(self) -> int:
        return len(self.kept)

    def batch(self, start: int, stop: int) -> Tensor:
        """(stop - start, views, D) unit features in float32 of the samples `kept[start:stop]`."""
        return self.of(self.kept[start:stop])

    def of(self, indices: NDArray[np.int64]) -> Tensor:
        """The same of any samples that have features, by their indices."""
        numbers = indices // CHUNK
        where, blocks = [], []
        for number in np.unique(numbers).tolist():
            where.append(np.flatnonzero(numbers == number))
            rows = indices[where[-1]] - number * CHUNK
            blocks.append(self._chunks[number].features[rows.min() : rows.max() + 1][rows - rows.min()])
        if not blocks:  # no samples, but views and D
            return torch.from_numpy(next(iter(self._chunks.values())).features[:0].astype(np.float32))
        back = np.concatenate(where).argsort()
        features = torch.from_numpy(np.concatenate(blocks)[back].astype(np.float32))
        return features if self._exact else F.normalize(features, dim=-1)


class FeatureCache:
    """Features kept on disk: in half precision, or in float32 where every bit counts."""

    def __init__(self, root: Path, *, exact: bool = False) -> None:
        self.root = root
        self.exact = exact
        self._drawers: dict[tuple[Preprocess, str], Drawer] = {}  # each compiles once, after many images
        self._ways: dict[tuple[int, bool, int], bool] = {}  # whether readers draw: by views, AugMix and workers

    def features(
        self,
        clip: Clip,
        dataset: Dataset,
        config: ViewConfig,
        seed: int,
        *,
        precision: Precision = "float32",
        samples: Iterable[int] | None = None,
        on_bad_image: OnBadImage = "fail",
        workers: int = 0,
        batch: int = BATCH,
        progress: Bar | None = None,
    ) -> Features:
        """Features of all views of a dataset; computes what is not cached.

        With `samples`, some indices, only the chunks that hold those are computed and opened. `batch` is a number of
        views. With `workers`, that many processes read images and draw views. An image that cannot be read fails the
        run or is skipped; one that an earlier run has skipped is tried again.
        """
        if not len(dataset):
            raise InputError(f"{dataset.name}, split {dataset.split}: no images")
        reader = Reader.of(dataset, config, clip.preprocess, seed)
        key = FeatureKey(
            image_digest=clip.image_digest,
            dataset=dataset.name,
            split=dataset.split,
            count=config.count,
            min_area=config.min_area,
            max_area=config.max_area,
            augmix=reader.augmix,
            flip=reader.flip,
            seed=seed,
            dtype="float32" if self.exact else "float16",
            compute=computed_in(precision, clip.device) + clip.bits,
        )
        images = at_once(config.count, batch)
        place = clip.preprocess, str(clip.device)
        if place not in self._drawers:
            self._drawers[place] = Drawer(clip.preprocess, clip.device)
        with open_entry(self.root, key.name()) as entry:
            entry.describe({"model": clip.name, **asdict(key)})
            filling = _Filling(
                entry=entry,
                clip=clip,
                reader=reader,
                drawer=self._drawers[place],
                ways=self._ways,
                digests=_digests(dataset, range(len(dataset)) if samples is None else samples),
                exact=self.exact,
                precision=precision,
                images=images,
                views=clip.text.room.batch(images * config.count, view_bytes(clip)),
                workers=workers,
                on_bad_image=on_bad_image,
                progress=progress,
            )
            return Features(filling.run(), exact=self.exact, cost=filling.cost())


def at_once(views: int, batch: int = BATCH) -> int:
    """Images of so many views that go through the image tower together; fewer take it as long."""
    return max(1, min(batch // views, CHUNK))


@lru_cache(maxsize=8)
def view_bytes(clip: Clip) -> float:
    """About what a view takes in the image tower: a block's widest layer, and what stands beside it."""
    widest = 0

    def seen(module: nn.Module, given: object, found: object) -> None:
        nonlocal widest
        widest = max(widest, found.nbytes if isinstance(found, Tensor) else 0)

    if math.isinf(clip.text.room.device):
        return 0.0
    with torch.no_grad(), ExitStack() as hooks:
        for module in clip.visual.modules():
            hooks.callback(module.register_forward_hook(seen).remove)
        clip.visual(torch.zeros(1, 3, *[clip.preprocess.size] * 2, device=clip.device))
    return 4.0 * widest


def computed_in(precision: Precision, device: torch.device) -> str:
    """What a key says of the tower's arithmetic: float32 is the same everywhere, half precision by kind of device."""
    if precision != "fp16":
        return precision
    return "float16" if device.type == "cuda" else f"float16 on {device.type}"


def _samples(number: int) -> slice:
    """Where the samples of a chunk stand in the dataset."""
    return slice(number * CHUNK, (number + 1) * CHUNK)


def _digests(dataset: Dataset, samples: Iterable[int]) -> dict[int, NDArray[np.uint8]]:
    """The digests of all samples of each chunk that holds some of these, by the chunk's number."""
    return {
        number: sample_digests((sample, dataset.fingerprint(sample)) for sample in dataset.ids[_samples(number)])
        for number in sorted({sample // CHUNK for sample in samples})
    }


@dataclass(slots=True, kw_only=True, eq=False)
class _Filling:
    """One run over the wanted chunks of an entry: finds those on disk, computes and writes the others."""

    entry: Entry
    clip: Clip
    reader: Reader
    drawer: Drawer
    ways: dict[tuple[int, bool, int], bool]
    digests: dict[int, NDArray[np.uint8]]  # (n, 16) of each wanted chunk, by its number
    exact: bool
    precision: Precision
    images: int  # that are drawn at once
    views: int  # that go through the image tower at once
    workers: int
    on_bad_image: OnBadImage
    progress: Bar | None
    chunks: dict[int, Chunk] = field(default_factory=dict)  # those that are done
    reported: set[str] = field(default_factory=set)
    done: int = 0  # images
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds, by stage

    def run(self) -> dict[int, Chunk]:
        began = perf_counter()
        missing = [number for number in self.digests if not self._find(number)]
        if missing:
            self.entry.clean()
        while missing:
            missing = self._compute_unlocked(missing)
            if missing:
                # other processes compute these: wait for the first, with no lock held meanwhile, then look again
                with self.entry.lock(missing[0], blocking=True):
                    pass
        if self.progress and perf_counter() - began > LOG and self.spent:
            self.progress.note(f"image features: time went to {shares(self.spent)}")
        return dict(sorted(self.chunks.items()))

    def cost(self) -> dict[str, float]:
        return {"images": float(self.done), **self.spent} if self.done else {}

    def _find(self, number: int) -> bool:
        """Take a chunk from disk, unless it lacks an image that can be read by now."""
        digests = self.digests[number]
        chunk = find_chunk(self.entry.folder, number, digests, self._report)
        if chunk is None or any(self._can_be_read(sample.sample_id) for sample in chunk.skipped):
            return False
        self.chunks[number] = chunk
        if self.progress:
            self.progress.found(len(digests))
        return True

    def _can_be_read(self, sample: str) -> bool:
        try:
            self.reader.dataset.source.image(sample)
        except BadImageError as error:
            self._fail_or_skip(str(error))
            return False
        return True

    def _compute_unlocked(self, missing: list[int]) -> list[int]:
        """Compute the chunks that no other process is computing; returns the others.

        A chunk is locked when its first image is asked for. Workers read ahead of the tower, so that the next chunk may
        be locked while one is computed.
        """
        locked: deque[tuple[int, ExitStack]] = deque()
        busy: list[int] = []
        with ExitStack() as locks:

            def lock_chunks() -> Iterator[int]:
                """Lock one chunk after the other; yields the indices of their samples."""
                for number in missing:
                    lock = locks.enter_context(ExitStack())
                    if not lock.enter_context(self.entry.lock(number, blocking=False)):
                        busy.append(number)
                    elif self._find(number):  # another process has finished it meanwhile
                        lock.close()
                    else:
                        locked.append((number, lock))
                        yield from range(len(self.reader.dataset.ids))[_samples(number)]

            indices = lock_chunks()
            first = next(indices, None)
            if first is None:  # nothing to read: start no workers
                return busy
            pin = self.clip.device.type == "cuda"
            reader = self._chosen(first)
            loader = read(reader, chain([first], indices), workers=self.workers, pin=pin)
            reading, rest = ("reading and drawing", "tower") if reader.draws else ("reading", "drawing and tower")
            views = self._waited(reading, loader)
            began, before = perf_counter(), sum(self.spent.values())
            with watched(loader):
                for first_views in views:
                    number, lock = locked.popleft()
                    self._write(number, self._compute(number, chain([first_views], views)))
                    lock.close()
            self.spent[rest] += perf_counter() - began - (sum(self.spent.values()) - before)
        return busy

    def _chosen(self, index: int) -> Reader:
        """A reader that draws, or leaves it to the device: measured once."""
        key = self.reader.config.count, self.reader.augmix, self.workers
        if key not in self.ways:
            tower = partial(halving, self._tower, at_once=self.views)
            chosen = faster(tower, self.reader, self.drawer, index, self.workers, self.progress)
            self.ways[key] = chosen.draws
        return replace(self.reader, draws=self.ways[key])

    def _compute(self, number: int, views: Iterator[Read]) -> Chunk:
        """The features of a chunk; takes the views of its samples, and no more, from the iterator."""
        ids = self.reader.dataset.ids[_samples(number)]
        count, size = self.reader.config.count, self.reader.preprocess.size
        pixels = torch.zeros(self.images, count, 3, size, size, device=self.drawer.device)
        kept = np.zeros(len(ids), np.bool_)
        skipped: list[Skipped] = []
        blocks: list[Tensor] = []
        for start in range(0, len(ids), self.images):
            in_batch = len(ids[start : start + self.images])
            group = {}
            for row, views_or_reason in enumerate(islice(views, in_batch)):
                if isinstance(views_or_reason, str):
                    self._fail_or_skip(views_or_reason)
                    skipped.append(Skipped(sample_id=ids[start + row], reason=views_or_reason))
                else:
                    group[row] = views_or_reason
                    kept[start + row] = True
            self.drawer.fill(pixels, group)
            # every batch has the same size: rows without a readable image hold zeros or views of an earlier batch, and
            # their features are dropped here or set to zero below
            features = halving(self._tower, pixels.flatten(0, 1), self.views)
            blocks.append(features.view(self.images, count, -1)[:in_batch])
            self.done += in_batch
            if self.progress:
                self.progress.advance(in_batch)
        features = torch.cat(blocks).cpu()  # all at once: a GPU is waited for once in a chunk
        if not features.isfinite().all():
            raise FloatingPointError(f"{self.clip.name}: the image tower gave features that are not finite")
        features[torch.from_numpy(~kept)] = 0
        values = features.numpy().astype(np.float32 if self.exact else np.float16)
        return Chunk(digests=self.digests[number], features=values, kept=kept, skipped=tuple(skipped))

    def _waited(self, name: str, views: Iterator[Read]) -> Iterator[Read]:
        """The same, with the clock running."""
        while True:
            began = perf_counter()
            found = next(views, None)
            self.spent[name] += perf_counter() - began
            if found is None:
                return
            yield found

    def _tower(self, pixels: Tensor) -> Tensor:
        run = self.clip.image_run if len(pixels) == self.views else eagerly  # whatever is left over is not compiled
        with computing(self.precision, self.clip.device):
            return self.clip.image_features(pixels, run=run)

    def _write(self, number: int, chunk: Chunk) -> None:
        """Put a chunk on disk, and go on with a map of its file."""
        path = chunk_path(self.entry.folder, number, chunk.digests)
        began = perf_counter()
        self.entry.write(path, chunk.to_bytes(), left=len(self.digests) - len(self.chunks) - 1)
        self.spent["disk"] += perf_counter() - began
        remove_superseded(self.entry.folder, number, chunk.digests)
        self.chunks[number] = Chunk.read(path)

    def _fail_or_skip(self, reason: str) -> None:
        if self.on_bad_image == "fail":
            raise InputError(f"{reason}; mend or remove the image, or leave it out with --set work.on_bad_image=skip")

    def _report(self, line: str) -> None:
        """Say a line once, though a chunk may be looked for several times."""
        if line in self.reported:
            return
        self.reported.add(line)
        if self.progress:
            self.progress.note(line)
        else:
            _log.warning(line)
