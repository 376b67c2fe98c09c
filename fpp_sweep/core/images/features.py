"""Image features of all views of a dataset: from the cache, and into it where they are missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.config import ViewConfig
from fpp_sweep.core.datasets.base import Dataset
from fpp_sweep.core.images.cache import EntryKey, open_entry
from fpp_sweep.core.images.chunks import Shard, Skipped
from fpp_sweep.core.images.filling import BATCH, SHARD, Filling, OnBadImage, Part, Progress, Reader, cut, skipped_among
from fpp_sweep.core.images.views import VIEWS_VERSION
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.errors import InputError


class Features:
    """The features of a dataset's views, mapped from disk; only what `batch` returns is in memory."""

    def __init__(self, shards: Sequence[tuple[Part, Shard]], *, exact: bool) -> None:
        """`shards` in order, with the part of the dataset that each holds."""
        self._shards = {part.index: shard for part, shard in shards}
        self._exact = exact
        # positions in the dataset of the samples that are there
        self.kept: NDArray[np.int64] = np.concatenate(
            [part.positions.start + np.flatnonzero(shard.kept[: len(part)]) for part, shard in shards]
        )
        self.skipped: tuple[Skipped, ...] = tuple(
            item for part, shard in shards for item in skipped_among(shard, len(part))
        )

    def __len__(self) -> int:
        return len(self.kept)

    def batch(self, start: int, stop: int) -> Tensor:
        """(stop - start, views, D) unit features in float32 of these kept samples."""
        positions = self.kept[start:stop]
        blocks = []
        for index in np.unique(positions // SHARD).tolist():
            rows = positions[positions // SHARD == index] - index * SHARD
            blocks.append(self._shards[index].rows(rows[0], rows[-1] + 1)[rows - rows[0]])
        if not blocks:
            return torch.from_numpy(next(iter(self._shards.values())).rows(0, 0).astype(np.float32))
        features = torch.from_numpy(np.concatenate(blocks).astype(np.float32))
        return features if self._exact else F.normalize(features, dim=-1)


class FeatureCache:
    """Features kept on disk: half precision, or float32 where every bit counts."""

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
        samples: range | None = None,
        on_bad_image: OnBadImage = "fail",
        workers: int = 0,
        batch: int = BATCH,
        progress: Progress | None = None,
    ) -> Features:
        """Features of all views of a dataset; computes what is not cached.

        With `samples`, a stretch of positions, only the shards that hold those are computed and opened.
        `batch` is a number of views. With `workers`, images are decoded and views are drawn in that many processes. An
        image that cannot be read fails the run or is skipped; one that an earlier run has skipped is tried again.
        """
        if not len(dataset):
            raise InputError(f"{dataset.name}, split {dataset.split}: no images")
        reader = Reader.of(dataset, config, clip.preprocess, seed)
        key = EntryKey(
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
            compute="float16" if clip.device.type == "cuda" and not self.exact else "float32",
            views_version=VIEWS_VERSION,
        )
        with open_entry(self.root, key) as entry:
            entry.describe({"model": clip.name, **dataclasses.asdict(key)})
            filling = Filling(
                entry=entry,
                clip=clip,
                reader=reader,
                parts=cut(dataset, samples or range(len(dataset))),
                dtype=np.float32 if self.exact else np.float16,
                group=max(1, min(batch // config.count, SHARD)),
                workers=workers,
                on_bad_image=on_bad_image,
                progress=progress,
            )
            return Features(filling.run(), exact=self.exact)
