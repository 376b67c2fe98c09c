"""Computing the features that a cache entry lacks.

An image's features are the same bits however a run is cut: its place in its shard decides its place in the tower's
batch, and batches are of one size, filled up where a shard ends. They do not depend on the number of workers, on what
else is cached, or on whether the run was on a dataset's first samples or on all.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples

from fpp_sweep.config import ViewConfig
from fpp_sweep.core.datasets.base import BadImageError, Dataset, ImageSource
from fpp_sweep.core.images.cache import Entry
from fpp_sweep.core.images.chunks import Contents, Shard, Skipped, sample_digests
from fpp_sweep.core.images.views import make_views, resolve, sample_rng
from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.errors import InputError

SHARD = 64  # images: 4 MB on disk at 64 views of 512 half-precision numbers, and what a killed run loses at most
BATCH = 256  # views that go through the tower at once: 150 MB of pixels at 224

OnBadImage = Literal["fail", "skip"]

_log = logging.getLogger(__name__)


class Progress(Protocol):
    """Who is told how far a run is; `fpp_sweep.progress.Bar` is one."""

    def found(self, count: int) -> None:
        """Images that are done and needed no work."""

    def advance(self, count: int) -> None:
        """Images that are done now."""

    def note(self, line: str) -> None:
        """Something worth a line."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The samples of one shard."""

    index: int
    samples: NDArray[np.uint8]  # (n, 16)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def positions(self) -> range:
        return range(self.index * SHARD, self.index * SHARD + len(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reader(Samples["Tensor | str"]):
    """The views of a sample by its position, or why its image cannot be read; travels to worker processes."""

    source: ImageSource
    ids: Sequence[str]
    names: tuple[str, str]  # of dataset and split
    seed: int
    config: ViewConfig
    preprocess: Preprocess
    augmix: bool
    flip: bool

    @classmethod
    def of(cls, dataset: Dataset, config: ViewConfig, preprocess: Preprocess, seed: int) -> Reader:
        """Of a dataset's views as they are configured for it."""
        augmix, flip = resolve(config, dataset)
        return cls(
            source=dataset.source,
            ids=dataset.ids,
            names=(dataset.name, dataset.split),
            seed=seed,
            config=config,
            preprocess=preprocess,
            augmix=augmix,
            flip=flip,
        )

    def __getitem__(self, position: int) -> Tensor | str:
        sample = self.ids[position]
        try:
            image = self.source.image(sample)
        except BadImageError as error:
            return str(error)
        rng = sample_rng(self.seed, *self.names, sample)
        return make_views(image, self.config, self.preprocess, augmix=self.augmix, flip=self.flip, rng=rng)


@dataclass(slots=True, kw_only=True, eq=False)
class Filling:
    """One run over an entry, shard by shard."""

    entry: Entry
    clip: Clip
    reader: Reader
    parts: list[Part]
    dtype: type[np.float16 | np.float32]
    group: int  # images that go through the tower at once
    workers: int
    on_bad_image: OnBadImage
    progress: Progress | None
    shards: dict[int, Shard] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)

    def run(self) -> list[tuple[Part, Shard]]:
        missing = [part for part in self.parts if not self._find(part)]
        if missing:
            self.entry.clean()
        while missing:
            missing = self._compute_free(missing)
            if missing:  # another process is at them; wait without holding anything, then look again
                with self.entry.lock(missing[0].index, blocking=True):
                    pass
        return [(part, self.shards[part.index]) for part in self.parts]

    def _find(self, part: Part) -> bool:
        """Take a shard from disk, unless an image that it lacks can be read by now."""
        shard, damaged = self.entry.find(part.index, part.samples, partial=len(part) < SHARD)
        for line in damaged:
            self._note(line)
        if shard is None or any(self._reads(item) for item in skipped_among(shard, len(part))):
            return False
        self.shards[part.index] = shard
        if self.progress:
            self.progress.found(len(part))
        return True

    def _reads(self, item: Skipped) -> bool:
        try:
            self.reader.source.image(item.sample_id)
        except BadImageError as error:
            self._bad(str(error))
            return False
        return True

    def _compute_free(self, parts: list[Part]) -> list[Part]:
        """Compute the shards that no other process is computing; returns the others.

        Shards are claimed while their images are asked for: by workers, that is some images ahead of the tower.
        """
        claimed: deque[tuple[Part, ExitStack]] = deque()
        busy: list[Part] = []
        with ExitStack() as locks:

            def claim() -> Iterator[int]:
                for part in parts:
                    lock = locks.enter_context(ExitStack())
                    if not lock.enter_context(self.entry.lock(part.index, blocking=False)):
                        busy.append(part)
                    elif self._find(part):  # another process has finished it meanwhile
                        lock.close()
                    else:
                        claimed.append((part, lock))
                        yield from part.positions

            positions = claim()
            first = next(positions, None)
            if first is None:
                return busy
            images = self._images(chain([first], positions))
            for image in images:
                part, lock = claimed.popleft()
                contents = self._compute(part, chain([image], islice(images, len(part) - 1)))
                left = len(self.parts) - len(self.shards) - 1
                self.shards[part.index] = self.entry.write(part.index, contents, left=left)
                lock.close()
        return busy

    def _images(self, positions: Iterable[int]) -> Iterator[Tensor | str]:
        loader = DataLoader(
            self.reader,
            batch_size=None,
            sampler=positions,
            num_workers=self.workers,
            multiprocessing_context="spawn" if self.workers else None,
            pin_memory=self.workers > 0 and self.clip.device.type == "cuda",
            worker_init_fn=hush,
            generator=torch.Generator(),  # or the loader would draw from the global stream
        )
        with deaf_children(self.workers):
            return iter(loader)

    def _compute(self, part: Part, images: Iterator[Tensor | str]) -> Contents:
        count, size = self.reader.config.count, self.reader.preprocess.size
        pixels = torch.zeros(self.group, count, 3, size, size)
        kept = np.zeros(len(part), np.bool_)
        skipped: list[Skipped] = []
        blocks: list[Tensor] = []
        for start in range(0, len(part), self.group):
            rows = range(start, min(start + self.group, len(part)))
            for row in rows:
                image = next(images)
                if isinstance(image, str):
                    self._bad(image)
                    skipped.append(Skipped(sample_id=self.reader.ids[part.positions[row]], reason=image))
                else:
                    pixels[row - start] = image
                    kept[row] = True
            # what is left of an earlier batch does no harm
            features = self.clip.image_features(pixels.flatten(0, 1), half=self.dtype == np.float16)
            blocks.append(features.view(self.group, count, -1)[: len(rows)].cpu())
            if self.progress:
                self.progress.advance(len(rows))
        features = torch.cat(blocks)
        if not features.isfinite().all():
            raise FloatingPointError(f"{self.clip.name}: the image tower gave features that are not finite")
        features[torch.from_numpy(~kept)] = 0
        numbers = features.numpy().astype(self.dtype)
        return Contents(samples=part.samples, features=numbers, kept=kept, skipped=tuple(skipped))

    def _bad(self, reason: str) -> None:
        if self.on_bad_image == "fail":
            raise InputError(f"{reason}; mend or remove the image, or leave it out with --on-bad-image skip")

    def _note(self, line: str) -> None:
        if line in self.noted:
            return
        self.noted.add(line)
        if self.progress:
            self.progress.note(line)
        else:
            _log.warning(line)


def cut(dataset: Dataset, samples: range) -> list[Part]:
    """The shards, of fixed size, that hold some of a dataset's samples."""
    parts = []
    for index in range(samples.start // SHARD, -(-samples.stop // SHARD)):
        ids = dataset.ids[index * SHARD : (index + 1) * SHARD]
        parts.append(Part(index, sample_digests([(sample, _fingerprint(dataset.source, sample)) for sample in ids])))
    return parts


def _fingerprint(source: ImageSource, sample: str) -> str:
    try:
        return source.fingerprint(sample)
    except BadImageError as error:  # reading it will tell, and count it
        return f"unreadable: {error}"


def skipped_among(shard: Shard, count: int) -> Iterator[Skipped]:
    """The skipped among a shard's first samples; they are listed in the samples' order."""
    return islice(shard.skipped, int((~shard.kept[:count]).sum()))


def hush(worker: int) -> None:
    """In a worker process: a parent that goes away while it fetches an image is nothing to tell of."""
    told = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, EOFError | ConnectionError):
            told(kind, error, trace)

    sys.excepthook = tell


@contextmanager
def deaf_children(workers: int) -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which a terminal sends to all: the parent ends them, without tracebacks."""
    here = threading.current_thread() is threading.main_thread() and hasattr(signal, "pthread_sigmask")
    if not workers or not here:
        yield
        return
    resource_tracker.ensure_running()  # or the first child would start it, which unblocks the signal
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))  # may come by another thread
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which a child inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if heard:  # meanwhile, and meant for us too
        signal.raise_signal(signal.SIGINT)
