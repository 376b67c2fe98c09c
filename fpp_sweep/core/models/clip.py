"""A frozen CLIP: an image tower, a text tower that takes embeddings, tokenizer and preprocessing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fpp_sweep.core.compute.compiling import Compiler, Runner, eagerly
from fpp_sweep.core.compute.precision import upcast
from fpp_sweep.core.models.class_token import ClassTokenBlock
from fpp_sweep.core.models.maple import DeepPrompts, digest_with, prompted
from fpp_sweep.core.text.tower import TextTower, Tokenizer
from fpp_sweep.spec.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """How an image becomes the tower's input."""

    size: int
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """Everything frozen, in evaluation mode, on one device."""

    name: str  # as given to --model
    visual: nn.Module
    text: TextTower
    tokenizer: Tokenizer
    logit_scale: float
    preprocess: Preprocess
    embedding_scale: float  # the scale of its token embeddings relative to those of OpenAI's ViT-B/16
    image_digest: str  # of the image tower's weights, prompts and preprocessing; part of the keys of cached features
    digest: str  # of all weights, prompts not among them
    trained_tokens: frozenset[int] | None = None  # None: all were
    image_run: Runner = eagerly  # for what goes through the image tower again and again in one shape

    @property
    def device(self) -> torch.device:
        return self.text.device

    def compiled(self) -> Clip:
        """The same model with both towers going through torch.compile; InputError where that cannot be used."""
        image = Compiler(self.device, [], constant_types=(nn.Module,), eager_calls=0, graphs=False)
        return replace(self, text=self.text.compiled(), image_run=image)

    @property
    def bits(self) -> str:
        """What moves last bits of features, as keys name it; empty for image towers as open_clip runs them."""
        alone = any(isinstance(each, ClassTokenBlock) for each in self.visual.modules())
        return ", class token alone" * alone + ", compiled towers" * (self.image_run is not eagerly)

    def with_deep(self, prompts: DeepPrompts, *, image: bool) -> Clip:
        """The same model with a MaPLe checkpoint's prompts in deeper layers of the text and, if asked, in the image."""
        clip = replace(self, text=self.text.with_deep(prompts.text))
        if not image:
            return clip
        visual = prompted(self.visual, prompts.visual, self.name)
        return replace(clip, visual=visual, image_digest=digest_with(self.image_digest, prompts.visual))

    def has_untrained_words(self, text: str) -> bool:
        """Whether the text has words that the model was never trained on."""
        trained = self.trained_tokens
        return trained is not None and not trained.issuperset(self.tokenizer.encode(text.replace("_", " ")))

    @torch.no_grad()
    def image_features(self, pixels: Tensor, run: Runner = eagerly) -> Tensor:
        """(N, 3, size, size) normalised pixels -> (N, D) unit features in float32."""
        pixels = pixels.to(self.device, non_blocking=True)
        if self.device.type == "cuda":
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        return F.normalize(upcast(run(_through, self.visual, pixels)), dim=-1)


def _through(visual: nn.Module, pixels: Tensor) -> Tensor:
    features: Tensor = visual(pixels)
    return features


def choose_device(name: str) -> str:
    """A device by name; `auto` is a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError) as error:  # torch raises the latter where it has no CUDA at all
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise InputError(f"device {name!r} cannot be used: {reason}") from error
    return name
