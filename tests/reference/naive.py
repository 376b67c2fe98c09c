"""CLIP's text tower, test-time adaptation and prompt pretraining, written for readers and not for speed.

This is the reference of the engine's tests and the baseline of the benchmarks. It was written from the protocol alone
and imports nothing from the package, so that an error in one is not an error in the other. It computes all 77
positions, one sample at a time, with autograd and torch's own AdamW for every step, and the literal form of every loss.

Letters in shapes: K classes, P positions (77), n context tokens, W text width, D shared dimension, V views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Distance = Literal["squared_l2", "l2", "cosine"]
Penalty = Callable[[Tensor], Tensor]

CONTEXT_STD = 0.0707105  # noise on the context in the released code: variance 0.005
CLASS_STD = 0.141421  # noise on all other positions in the released code: variance 0.02


# The text tower


@dataclass(frozen=True)
class NaiveText:
    """A text tower in OpenAI's naming; computes in the dtype of its weights."""

    weights: Mapping[str, Tensor]
    heads: int
    quick_gelu: bool

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the token embeddings (K, P, W) of ids (K, P), before positions are added."""
        return self.weights["token_embedding.weight"][token_ids]

    def features(self, embeddings: Tensor, token_ids: Tensor) -> Tensor:
        """Return unit features (K, D) of embeddings (K, P, W), read at EOT, which has the largest id of each text."""
        positions = embeddings.shape[1]
        x = embeddings + self.weights["positional_embedding"][:positions]
        for layer in range(self.layers):
            prefix = f"transformer.resblocks.{layer}"
            x = x + self._attention(self._layer_norm(x, f"{prefix}.ln_1"), f"{prefix}.attn")
            x = x + self._mlp(self._layer_norm(x, f"{prefix}.ln_2"), f"{prefix}.mlp")
        x = self._layer_norm(x, "ln_final")
        at_eot = x[torch.arange(len(x)), token_ids.argmax(dim=-1)]
        return unit(at_eot @ self.weights["text_projection"])

    @property
    def layers(self) -> int:
        """The number of transformer blocks."""
        return len({name.split(".")[2] for name in self.weights if "resblocks" in name})

    def _layer_norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred**2).mean(dim=-1, keepdim=True)
        scaled = centred / torch.sqrt(variance + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _attention(self, x: Tensor, name: str) -> Tensor:
        texts, positions, width = x.shape
        head_width = width // self.heads
        projected = x @ self.weights[f"{name}.in_proj_weight"].T + self.weights[f"{name}.in_proj_bias"]
        query, key, value = (
            part.reshape(texts, positions, self.heads, head_width).transpose(1, 2)
            for part in projected.chunk(3, dim=-1)
        )
        mask = torch.full((positions, positions), -math.inf).triu(diagonal=1).to(x)
        scores = query @ key.transpose(-2, -1) / math.sqrt(head_width) + mask
        mixed = (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(x.shape)
        return self._linear(mixed, f"{name}.out_proj")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        hidden = self._linear(x, f"{name}.c_fc")
        if self.quick_gelu:
            active = hidden * torch.sigmoid(1.702 * hidden)
        else:
            active = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return self._linear(active, f"{name}.c_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]


def length(x: Tensor) -> Tensor:
    """Return the length of each row."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return lengths


def unit(x: Tensor) -> Tensor:
    """Return rows divided by their length."""
    return x / length(x)[..., None]


def with_context(embeddings: Tensor, context: Tensor) -> Tensor:
    """Replace positions 1..n of the class texts by one context for all classes."""
    prefix, suffix = embeddings[:, :1], embeddings[:, 1 + len(context) :]
    return torch.cat([prefix, context.expand(len(embeddings), -1, -1), suffix], dim=1)


def prompt_features(text: NaiveText, token_ids: Tensor, context: Tensor) -> Tensor:
    """Return the features (K, D) of the class texts under a context."""
    return text.features(with_context(text.embed(token_ids), context), token_ids)


def random_weights(
    *, width: int, layers: int, embed_dim: int, vocabulary: int, positions: int = 77, seed: int = 0
) -> dict[str, Tensor]:
    """Return the weights of a random text tower whose features depend on the prompt as much as those of a trained one.

    Standard deviations follow CLIP's own initialisation (one over the root of the fan-in), with two differences: token
    embeddings are larger than position embeddings, and the sum of all residual branches has the same size at any depth.
    Class features then differ (mean cosine 0.5 at width 32, 0.94 at width 512), and a random context moves them by a
    cosine of 0.5 to 0.75.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float, mean: float = 0.0) -> Tensor:
        return mean + std * torch.randn(shape, generator=generator)

    residual = 0.8 * math.sqrt(3 / layers)
    weights = {
        "token_embedding.weight": normal(vocabulary, width, std=0.2),
        "positional_embedding": normal(positions, width, std=0.05),
        "text_projection": normal(width, embed_dim, std=width**-0.5),
        "logit_scale": torch.tensor(math.log(100)),
    }
    for layer in range(layers):
        prefix = f"transformer.resblocks.{layer}"
        weights |= {
            f"{prefix}.attn.in_proj_weight": normal(3 * width, width, std=1.2 * width**-0.5),
            f"{prefix}.attn.in_proj_bias": normal(3 * width, std=0.02),
            f"{prefix}.attn.out_proj.weight": normal(width, width, std=residual * width**-0.5),
            f"{prefix}.attn.out_proj.bias": normal(width, std=0.02),
            f"{prefix}.mlp.c_fc.weight": normal(4 * width, width, std=1.2 * width**-0.5),
            f"{prefix}.mlp.c_fc.bias": normal(4 * width, std=0.02),
            f"{prefix}.mlp.c_proj.weight": normal(width, 4 * width, std=residual * (4 * width) ** -0.5),
            f"{prefix}.mlp.c_proj.bias": normal(width, std=0.02),
        }
    norms = []
    for layer in range(layers):
        norms += [f"transformer.resblocks.{layer}.ln_1", f"transformer.resblocks.{layer}.ln_2"]
    for name in [*norms, "ln_final"]:
        weights[f"{name}.weight"] = normal(width, std=0.05, mean=1.0)
        weights[f"{name}.bias"] = normal(width, std=0.02)
    return weights


def random_views(
    features: Tensor, *, samples: int, views: int, logit_scale: float = 100.0, spread: float = 2.5, seed: int = 0
) -> Tensor:
    """Return unit image features (samples, views, D) whose logits differ between classes by about `spread`, as in CLIP.

    As in CLIP, most of an image's feature lies in a direction that is the same for all classes. Features with random
    directions would saturate the softmax where D is small, and leave no gradient.
    """
    generator = torch.Generator().manual_seed(seed)
    centred = features - features.mean(dim=0)
    sample = torch.randn(samples, 1, len(features), generator=generator)
    view = torch.randn(samples, views, len(features), generator=generator)
    signal = (sample + 0.7 * view) @ centred
    signal = signal * spread / (logit_scale * (signal @ centred.T).std(dim=-1).mean())
    uninformative = torch.linalg.svd(centred, full_matrices=True).Vh[-1]  # orthogonal to differences of classes
    remainder = (1 - (signal**2).sum(dim=-1, keepdim=True)).clamp(min=0).sqrt()
    return unit(signal + remainder * uninformative)


# Test-time adaptation


@dataclass(frozen=True)
class Adapted:
    """The result of adaptation for one sample."""

    probabilities: Tensor  # (K,), of view 0
    context: Tensor  # (n, W)
    losses: list[float]  # before each step


def zero_shot(text: NaiveText, token_ids: Tensor, context: Tensor, views: Tensor, *, logit_scale: float) -> Tensor:
    """Return the probabilities (K,) of view 0 under a context as it is."""
    with torch.no_grad():
        features = prompt_features(text, token_ids, context)
        return torch.softmax(logit_scale * unit(views[0]) @ features.T, dim=-1)


def adapt_one(
    text: NaiveText,
    token_ids: Tensor,
    context0: Tensor,
    views: Tensor,
    *,
    logit_scale: float,
    steps: int = 1,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    selection: float = 0.1,
    penalty: Penalty | None = None,
    weight: float = 0.0,
) -> Adapted:
    """Adapt to one sample by TPT: fresh context, fresh optimizer, some steps, then the prediction of view 0.

    `views` (V, D) need not be of unit norm. All steps use the views selected at the first step, and AdamW keeps its
    state from step to step.
    """
    views = unit(views)
    embeddings = text.embed(token_ids)
    context = context0.clone().requires_grad_()
    optimizer = torch.optim.AdamW([context], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
    selected: Tensor | None = None
    losses = []
    for _ in range(steps):
        features = text.features(with_context(embeddings, context), token_ids)
        logits = (logit_scale * views) @ features.T
        if selected is None:
            selected = most_confident(logits.detach(), selection)
        loss = marginal_entropy(logits[selected])
        if penalty is not None:
            loss = loss + weight * penalty(features)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    final = context.detach()
    probabilities = zero_shot(text, token_ids, final, views, logit_scale=logit_scale)
    return Adapted(probabilities, final, losses)


def most_confident(logits: Tensor, selection: float) -> Tensor:
    """Return the indices of the int(selection * V) views of lowest entropy, or of one view if that number is zero."""
    probabilities = torch.softmax(logits, dim=-1)
    entropies = -(probabilities * torch.log_softmax(logits, dim=-1)).sum(dim=-1)
    return torch.argsort(entropies)[: max(1, int(selection * len(logits)))]


def marginal_entropy(logits: Tensor) -> Tensor:
    """Return the entropy, in nats, of the mean of the views' softmax vectors."""
    log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)
    log_mean = log_probabilities.logsumexp(dim=0) - math.log(len(logits))
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)
    return -(log_mean * log_mean.exp()).sum()


def dispersion(features: Tensor) -> Tensor:
    """Return C-TPT's penalty: minus the mean distance of the class features from their mean."""
    distances = length(features - features.mean(dim=0))
    return -distances.mean()


def householder(features: Tensor) -> Tensor:
    """Return O-TPT's penalty with a K x K reflection per class; NaN if a feature is orthogonal to all others."""
    gram = features @ features.T
    identity = torch.eye(len(gram)).to(gram)
    axis = gram - length(gram)[:, None] * identity  # u_i = w_i - |w_i| e_i
    axis = unit(axis)
    reflections = identity - 2 * axis[:, :, None] * axis[:, None, :]  # (K, K, K)
    reflected = (reflections @ gram[:, :, None])[:, :, 0]  # h_i
    return length(reflected - identity).mean()


def squared_gram(features: Tensor) -> Tensor:
    """Return O-TPT's penalty as its paper writes it: the squared entries of T T' - 1, summed."""
    total = features.new_zeros(())
    for row, first in enumerate(features):
        for column, second in enumerate(features):
            total = total + ((first * second).sum() - int(row == column)) ** 2
    return total


# Test-time adaptation with other steps


@dataclass(frozen=True)
class Sample:
    """The loss of one sample and its gradient, as functions of the context."""

    text: NaiveText
    token_ids: Tensor
    views: Tensor  # (V, D) of unit norm
    logit_scale: float
    selection: float
    penalty: Penalty | None = None
    weight: float = 0.0

    def gradient(
        self, context: Tensor, selected: Tensor | None, *, entropy: bool = True, penalised: bool = True
    ) -> tuple[Tensor, Tensor, float]:
        """Return gradient, view indices and loss; views are selected at this context if `selected` is None."""
        context = context.detach().clone().requires_grad_()
        features = prompt_features(self.text, self.token_ids, context)
        logits = (self.logit_scale * self.views) @ features.T
        if selected is None:
            selected = most_confident(logits.detach(), self.selection)
        loss = marginal_entropy(logits[selected]) if entropy else torch.zeros(())
        if penalised and self.penalty is not None:
            loss = loss + self.weight * self.penalty(features)
        return torch.autograd.grad(loss, context)[0], selected, loss.item()

    def adapted(self, context: Tensor, losses: list[float]) -> Adapted:
        """Return the prediction under a context as the result of adaptation."""
        final = context.detach()
        probabilities = zero_shot(self.text, self.token_ids, final, self.views, logit_scale=self.logit_scale)
        return Adapted(probabilities, final, losses)


def adamw_of(context: Tensor, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW([context], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)


def adapt_sharpness_aware(
    text: NaiveText,
    token_ids: Tensor,
    context0: Tensor,
    views: Tensor,
    *,
    logit_scale: float,
    rho: float,
    adaptive: bool = False,
    reselect: bool = False,
    optimizer: Literal["adamw", "sgd"] = "adamw",
    steps: int = 1,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    selection: float = 0.1,
    penalty: Penalty | None = None,
    weight: float = 0.0,
) -> Adapted:
    """Adapt by SAM or (adaptive) ASAM: the gradient at the worst point nearby, applied at the context itself."""
    sample = Sample(text, token_ids, unit(views), logit_scale, selection, penalty, weight)
    context = context0.clone().requires_grad_()
    if optimizer == "adamw":
        stepper = adamw_of(context, lr, weight_decay)
    else:
        stepper = torch.optim.SGD([context], lr=lr, weight_decay=weight_decay)
    selected: Tensor | None = None
    losses = []
    for _ in range(steps):
        gradient, selected, loss = sample.gradient(context, selected)
        if not gradient.any():
            perturbation = torch.zeros_like(gradient)
        elif adaptive:
            size = context.detach().abs()
            perturbation = rho * size**2 * gradient / (size * gradient).norm()
        else:
            perturbation = rho * gradient / gradient.norm()
        context.grad, _, _ = sample.gradient(context + perturbation, None if reselect else selected)
        stepper.step()
        losses.append(loss)
    return sample.adapted(context, losses)


def adapt_two_steps(
    text: NaiveText,
    token_ids: Tensor,
    context0: Tensor,
    views: Tensor,
    *,
    logit_scale: float,
    order: tuple[Literal["ent", "reg"], Literal["ent", "reg"]],
    carry: bool = True,
    reselect: bool | None = None,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    selection: float = 0.1,
    penalty: Penalty | None = None,
    weight: float = 0.0,
) -> Adapted:
    """Adapt by a step on one term of the loss and then a step on another.

    The second step selects views again if `reselect`, by default if the first step is on the penalty, which uses no
    views. `carry` keeps the optimizer for the second step.
    """
    if reselect is None:
        reselect = order[0] == "reg"
    sample = Sample(text, token_ids, unit(views), logit_scale, selection, penalty, weight)
    context = context0.clone().requires_grad_()
    optimizer = adamw_of(context, lr, weight_decay)
    selected: Tensor | None = None
    losses = []
    for term in order:
        terms = {"entropy": term == "ent", "penalised": term == "reg"}
        context.grad, selected, loss = sample.gradient(context, selected, **terms)
        optimizer.step()
        losses.append(loss)
        if not carry:
            optimizer = adamw_of(context, lr, weight_decay)
        if reselect:
            selected = None
    return sample.adapted(context, losses)


def sharpness(
    text: NaiveText,
    token_ids: Tensor,
    context: Tensor,
    views: Tensor,
    *,
    logit_scale: float,
    rho: float,
    selected_at: Tensor,
    selection: float = 0.1,
    by_token: bool = False,
) -> tuple[float, float]:
    """Return the increase of the entropy over a step of length `rho` along its gradient, and <context, gradient>.

    Views are selected at the context `selected_at`. With `by_token`, the step of every token has the length `rho`.
    """
    sample = Sample(text, token_ids, unit(views), logit_scale, selection)
    _, selected, _ = sample.gradient(selected_at, None)
    gradient, _, loss_before = sample.gradient(context, selected)
    lengths = length(gradient)[:, None] if by_token else gradient.norm()
    _, _, loss_after = sample.gradient(context + rho * gradient / lengths, selected)
    return loss_after - loss_before, float((context * gradient).sum())


# Flatness-aware prompt pretraining


@dataclass(frozen=True)
class Noise:
    """Standard-normal draws of one step, which all classes share, or which have an axis of K classes after the draws.

    Draws are scaled in their own dtype, as the released code does with its half-precision draws on a GPU. The suffix
    may end before position 77, because positions after the last EOT have no effect.
    """

    context: Tensor  # (draws, n, W)
    sos: Tensor  # (draws, 1, W)
    suffix: Tensor  # (draws, L, W)

    def scaled(self, context_std: float, class_std: float, positions: int) -> Tensor:
        """Return the noise (draws, K or 1, P, W) to add to the embeddings."""
        shared = self.context.dim() == 3
        parts = [self.sos * class_std, self.context * context_std, self.suffix * class_std]
        if shared:
            parts = [part[:, None] for part in parts]
        noise = torch.cat(parts, dim=2).float()
        return F.pad(noise, (0, 0, 0, positions - noise.shape[2]))


@dataclass(frozen=True)
class Pretrained:
    """The result of pretraining."""

    context: Tensor  # (n, W)
    features: Tensor  # (K, D) under that context
    losses: Tensor  # (steps, 2): alignment and flatness before each step


def pretrain(
    text: NaiveText,
    token_ids: Tensor,
    anchor: Tensor,
    start: Tensor,
    noise: Sequence[Noise],
    *,
    weight: float,
    context_std: float = CONTEXT_STD,
    class_std: float = CLASS_STD,
    lr: float = 1e-2,
    final_lr: float = 1e-4,
    weight_decay: float = 0.01,
    align: Distance | None = "squared_l2",
    flat: Distance | None = "cosine",
    detach: Literal["noisy", "clean", "none"] = "noisy",
    name_only: bool = False,
    words_after: int = 0,
    embeddings: Tensor | None = None,
) -> Pretrained:
    """Learn a context whose features stay near those of the anchor prompt under noise; take one step per `noise`.

    `weight` is lambda. A term is off if `align` or `flat` is None. `words_after` tokens stand between context and name.
    `embeddings` replace those of the class texts, for classes without words.
    """
    if embeddings is None:
        embeddings = text.embed(token_ids)
    with torch.no_grad():
        target = text.features(with_context(embeddings, anchor), token_ids)
    context = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([context], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, len(noise)), eta_min=final_lr)
    losses = []
    for draws in noise:
        offsets = draws.scaled(context_std, class_std, token_ids.shape[1])
        if name_only:
            offsets = offsets * context_or_name(token_ids, len(start), words_after)
        alignment, flatness = fpp_losses(
            text,
            token_ids,
            with_context(embeddings, context),
            target,
            offsets,
            weight=weight,
            align=align,
            flat=flat,
            detach=detach,
        )
        optimizer.zero_grad()
        torch.autograd.backward(alignment + flatness)
        optimizer.step()
        scheduler.step()
        losses.append([alignment.item(), flatness.item()])
    final = context.detach()
    with torch.no_grad():
        features = text.features(with_context(embeddings, final), token_ids)
    return Pretrained(final, features, torch.tensor(losses).reshape(-1, 2))


def fpp_losses(
    text: NaiveText,
    token_ids: Tensor,
    prompts: Tensor,
    target: Tensor,
    offsets: Tensor,
    *,
    weight: float,
    align: Distance | None = "squared_l2",
    flat: Distance | None = "cosine",
    detach: Literal["noisy", "clean", "none"] = "noisy",
) -> tuple[Tensor, Tensor]:
    """Return alignment and weighted flatness of prompts (K, P, W) under offsets (draws, K or 1, P, W)."""
    with torch.set_grad_enabled(detach != "noisy"):
        noisy = torch.stack([text.features(prompts + offset, token_ids) for offset in offsets])
    clean = text.features(prompts, token_ids)
    flatness = _flatness(clean.detach() if detach == "clean" else clean, noisy, flat)
    return _alignment(clean, target, align), weight * flatness


def _alignment(clean: Tensor, target: Tensor, distance: Distance | None) -> Tensor:
    if distance is None:
        return clean.new_zeros(())
    if distance == "squared_l2":
        return ((clean - target) ** 2).mean() * clean.shape[-1]
    return _distance(clean, target, distance).mean()


def _flatness(clean: Tensor, noisy: Tensor, distance: Distance | None) -> Tensor:
    """Return the mean distance over draws and classes; as in released code, the cosine distance is without its 1."""
    if distance is None:
        return clean.new_zeros(())
    if distance == "cosine":
        return -torch.cosine_similarity(clean.expand_as(noisy), noisy, dim=-1).mean()
    return _distance(clean, noisy, distance).mean()


def _distance(a: Tensor, b: Tensor, distance: Distance) -> Tensor:
    if distance == "squared_l2":
        return ((a - b) ** 2).sum(dim=-1)
    if distance == "l2":
        return length(a - b)
    return 1 - torch.cosine_similarity(a, b, dim=-1)


def context_or_name(token_ids: Tensor, context: int, words_after: int = 0) -> Tensor:
    """Return a mask (K, P, 1): one at context and name; zero at SOS, words between, full stop, EOT and padding."""
    position = torch.arange(token_ids.shape[1])
    full_stop = token_ids.argmax(dim=-1, keepdim=True) - 1
    between = (position > context) & (position <= context + words_after)
    return ((position >= 1) & (position < full_stop) & ~between).float()[:, :, None]


def gaussian_classes(text: NaiveText, token_ids: Tensor, normals: Tensor) -> Tensor:
    """Return embeddings (K, P, W) of texts whose positions 5 and 6 are noise with the spread of the token table.

    `token_ids` are those of `a photo of a XX.`, K times; `normals` (K, 2, W) are standard-normal.
    """
    table = text.weights["token_embedding.weight"]
    embeddings = text.embed(token_ids).clone()
    embeddings[:, 5:7] = table.mean() + table.std() * normals
    return embeddings
