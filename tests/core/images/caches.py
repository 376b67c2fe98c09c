"""A feature cache for tests, filled with the features of painted images."""

from types import SimpleNamespace

import torch

from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.spec.config import ViewConfig
from tests.kit.models import random_clip

VIEWS = ViewConfig(count=3)
CLIP = random_clip()
BAD = frozenset({"1.png", "66.png"})  # samples whose images cannot be read


class Log:
    """A stand-in for a progress bar that keeps what is shown."""

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
    """Return features, computed where they are not cached, and the log."""
    log = Log()
    features = FeatureCache(root, exact=exact).features(clip, dataset, views, seed, progress=log, **options)
    return features, log


def everything(features):
    return features.batch(0, len(features))


def assert_close(ours, theirs, tolerance=1e-6):
    """Compare tensors; torch.testing would take seconds to load."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance


def files(root, pattern="*.safetensors"):
    return sorted(root.glob(f"features/*/{pattern}"))


def states(root):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files(root)}


class OnGpu:
    """A stand-in for CLIP that claims to be on a GPU."""

    device = SimpleNamespace(type="cuda")

    def __getattr__(self, name):
        return getattr(CLIP, name)


class ShortOfMemory(torch.nn.Module):
    """A module or function that runs out of memory, as torch does, with more rows than `most`."""

    def __init__(self, work, most):
        super().__init__()
        self.work, self.most, self.sizes = work, most, []

    def forward(self, rows, *others, **named):
        self.sizes.append(len(rows))
        if len(rows) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.work(rows, *others, **named)
