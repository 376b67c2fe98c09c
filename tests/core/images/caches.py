"""A feature cache for tests, filled with the features of painted images."""

import numpy as np
import torch

from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.spec.config import ViewConfig
from tests.kit.models import random_clip

VIEWS = ViewConfig(count=3)
CLIP = random_clip()
BAD = frozenset({"1.png", "66.png"})  # samples whose images cannot be read


class Log:
    """A stand-in for a progress bar that stores its counts and notes."""

    def __init__(self):
        self.cached = 0
        self.computed = 0
        self.notes = []

    def add_cached(self, count):
        self.cached += count

    def advance(self, count):
        self.computed += count

    def note(self, line):
        self.notes.append(line)


def fill(root, dataset, views=VIEWS, *, clip=CLIP, seed=0, exact=False, **options):
    """Return the features of a dataset, of which missing ones are computed and cached, and the log."""
    log = Log()
    features = FeatureCache(root, exact=exact).features(clip, dataset, views, seed, progress=log, **options)
    features.all_indices = np.arange(len(dataset))  # for `everything`
    return features, log


def everything(features):
    return features.of(features.all_indices)


def assert_close(actual, expected, tolerance=1e-6):
    """Compare tensors without torch.testing, which takes seconds to import."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance


def files(root, pattern="*.safetensors"):
    return sorted(root.glob(f"features/*/{pattern}"))


def file_states(root):
    """Return inode and time of each chunk file, which change when the file is written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files(root)}


class ShortOfMemory(torch.nn.Module):
    """A module or function that raises torch's error of a lack of memory for more than `max_rows` rows."""

    def __init__(self, work, max_rows):
        super().__init__()
        self.work, self.max_rows, self.sizes = work, max_rows, []

    def forward(self, rows, *args, **kwargs):
        self.sizes.append(len(rows))
        if len(rows) > self.max_rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.work(rows, *args, **kwargs)
