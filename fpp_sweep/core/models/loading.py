"""From the value of `--model` to a frozen `Clip`. The forms of that value are in `model_names.py`."""

from __future__ import annotations

from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.models.model_names import EMBEDDED, parse


def load(model_name: str, device: str = "cpu") -> Clip:
    """Load the model that `--model` names: float32, frozen, in evaluation mode."""
    spec = parse(model_name)
    from fpp_sweep.core.models import open_clip_models  # start-up time: it imports open_clip

    if spec.architecture == EMBEDDED:
        return open_clip_models.load_embedded(device)
    return open_clip_models.load_open_clip(model_name, spec, device)
