"""Augmented views of one image, rendered in one call."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fpp_sweep.core.images.views import normalize, plan_views, render_with_pillow
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig


def make_views(
    image: Image.Image,
    config: ViewConfig,
    preprocess: Preprocess,
    *,
    augmix: bool,
    flip: bool,
    rng: np.random.Generator,
) -> Tensor:
    """Return (count, 3, size, size) normalised float32 views of an RGB image."""
    plan = plan_views(image.size, config, augmix=augmix, flip=flip, rng=rng)
    return normalize(torch.from_numpy(render_with_pillow(image, plan, preprocess)), preprocess)
