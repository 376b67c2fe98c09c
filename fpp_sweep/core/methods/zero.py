"""ZERO (Farina et al., 2024): the confident views vote for a class; no gradient and no state.

`Zero` counts votes, as described or as released; `ZeroMean` averages the same views' predictions instead.

Shapes: B samples, V views, K classes, Q views that vote.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fpp_sweep.core.methods.base import Classifier, FrozenPrompt, TextModel, cosine_logits
from fpp_sweep.core.methods.tpt import confident_views, number_selected, view_entropies

VOTE_FLOOR = 1e-6  # votes that every class gets, because votes contain zeros and logits must be finite; our choice
RELEASED_SCALE = 1024.0  # one over the machine epsilon of half precision, in which the released program runs


class Zero(FrozenPrompt):
    """ZERO: the logits are the logarithms of the shares of votes."""

    @torch.no_grad()
    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        order = view_entropies(state.logits(views)).argsort(dim=-1, stable=True)
        cosines = cosine_logits(views, state.features, 1.0)
        voting = number_selected(views.shape[1], self.adapt.vote_fraction)
        votes = count_votes(cosines, order, voting, released=self.adapt.vote_form == "released")
        return log_shares(votes), state


class ZeroMean(FrozenPrompt):
    """The mean prediction of the views that vote in ZERO; the paper defines no probabilities for ZERO."""

    @torch.no_grad()
    def predict(self, model: TextModel, state: Classifier, views: Tensor) -> tuple[Tensor, Classifier]:
        logits = state.logits(views)
        confident = confident_views(logits.log_softmax(-1), logits, self.adapt.vote_fraction)  # (B, Q, K)
        return confident.logsumexp(1).log_softmax(-1), state


def log_shares(votes: Tensor) -> Tensor:
    """Return the logarithms of the shares of votes (B, K), with a floor under each class."""
    floored = votes + VOTE_FLOOR
    return floored.log() - floored.sum(-1, keepdim=True).log()


def count_votes(cosines: Tensor, order: Tensor, voting: int, *, released: bool) -> Tensor:
    """Return the votes (B, K) of the first `voting` views in order of entropy, with the extra vote that breaks a tie.

    `cosines` (B, V, K), `order` (B, V). As described, a view votes for one class. As released, it shares its vote by
    a softmax of its cosines at scale 1024, which is nearly hard.
    """
    ranked = cosines.take_along_dim(order[..., None], dim=1)  # (B, V, K), the most confident view first
    classes = ranked.argmax(-1)  # (B, V)
    if released:
        ballots = (RELEASED_SCALE * ranked[:, :voting]).softmax(-1)
    else:
        ballots = torch.nn.functional.one_hot(classes[:, :voting], cosines.shape[-1]).to(cosines.dtype)
    votes = ballots.sum(1)
    if voting == cosines.shape[1]:
        return votes  # no view is left to break a tie; the lowest class of a tie wins
    tied = votes == votes.amax(-1, keepdim=True)
    winner = _class_that_breaks_a_tie(tied, classes[:, voting:], ranked[:, voting], released=released)
    extra = torch.nn.functional.one_hot(winner, votes.shape[-1]).to(votes.dtype)
    is_tie = tied.sum(-1, keepdim=True) > 1
    return votes + extra * is_tie


def _class_that_breaks_a_tie(tied: Tensor, remaining: Tensor, next_cosines: Tensor, *, released: bool) -> Tensor:
    """Return the class (B,) that gets the extra vote where classes are `tied` (B, K).

    The views that did not vote, whose classes are `remaining` (B, R), are asked in order of entropy: the first whose
    class is tied decides. If there is none, the most confident of these views decides, from its cosines (B, K): as
    described among the tied classes, as released among the classes that the program's slip of an index leaves.
    """
    is_tied_class = tied.gather(1, remaining)  # (B, R)
    first = is_tied_class.int().argmax(-1, keepdim=True)
    by_first_view = remaining.gather(1, first)[:, 0]
    excluded = ~tied
    if released:
        # the program inverts the numbers of the tied classes (~i = -i-1) instead of a mask, and so excludes the classes
        # with these numbers counted from the end
        excluded = tied.flip(-1)
    by_cosines = next_cosines.masked_fill(excluded, -torch.inf).argmax(-1)
    return torch.where(is_tied_class.any(-1), by_first_view, by_cosines)
