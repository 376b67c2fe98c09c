"""SoC (CVPR 2026): TPT with a Huber penalty on the cosines between text features.

The paper does not print its weight and its delta: both are settings whose defaults are ours. The authors' code is
public (leofillioux/SoC) and has not been compared with this form; its README runs weight 30 on ViT-L/14, and O-TPT 18.
"""

from __future__ import annotations

from torch import Tensor

from fpp_sweep.core.compute.precision import without_autocast
from fpp_sweep.core.methods.penalties import pairwise_huber
from fpp_sweep.core.methods.tpt import Tpt


class Soc(Tpt):
    """SoC: the penalty's delta is the setting `adapt.huber_delta`."""

    def weighted_penalty(self, features: Tensor) -> Tensor:
        """Return the weighted penalty (b,) of text features (b, K, D)."""
        with without_autocast(features):
            return self.weight * pairwise_huber(features, self.adapt.huber_delta)
