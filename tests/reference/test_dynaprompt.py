"""The naive DynaPrompt reproduces golden numbers of the released code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.golden import HEADS, load
from tests.golden.streams import EXACT, NEAR, Stream, streams, views
from tests.kit.long_forms import short_and_long
from tests.reference.dynaprompt import NaiveBuffer, Trace, dynaprompt_one
from tests.reference.naive import NaiveText, Penalty, dispersion, householder

GOLDEN = load()
TEXT = NaiveText(GOLDEN.weights, HEADS, quick_gelu=True)
TOKENS = GOLDEN["tta/tokens"][:, :11]  # the longest text ends there
PENALTIES: dict[str | None, Penalty | None] = {None: None, "ctpt": dispersion, "otpt": householder}


def integers(trace: Trace, width: int) -> dict[str, Tensor]:
    """Return the integers of a trace in the form of the golden numbers."""
    padded = trace.selected + [-1] * (width - len(trace.selected))
    actual = {
        "init_slot": trace.init_slot,
        "entropy_order": trace.entropy_order,
        "difference_order": trace.difference_order,
        "rank_of_init": trace.entropy_order.index(trace.init_slot),
        "candidates": [slot in trace.candidates for slot in range(len(trace.entropy))],
        "selected": padded,
        "views": sorted(trace.views),
    }
    return {name: torch.tensor(value) for name, value in actual.items()}


@pytest.mark.parametrize("name", short_and_long(streams(), lambda name: name.endswith("_small")))
def test_every_sample_of_a_released_stream_is_reproduced(name: str) -> None:
    stream: Stream = streams()[name]
    for span in stream.spans():
        offsets, order, use = stream.buffer(span.start)
        buffer = NaiveBuffer(stream["init_ctx"], offsets, order, use)
        for sample in span:
            trace = dynaprompt_one(
                TEXT,
                TOKENS,
                buffer,
                views()[sample],
                logit_scale=GOLDEN.logit_scale,
                rule=stream.rule,
                penalty=PENALTIES[stream.settings["regulariser"]],
                weight=stream.settings["lambda"],
            )
            exact = integers(trace, stream["selected"].shape[1])
            assert set(exact) == set(EXACT)
            for quantity, value in exact.items():
                assert value.tolist() == stream[quantity][sample].tolist(), (sample, quantity)
            assert buffer.order == stream["order_after"][sample].tolist()
            assert buffer.use == stream["use_after"][sample].tolist()
            near = {
                "entropy": torch.tensor(trace.entropy),
                "difference": torch.tensor(trace.difference),
                "loss": torch.tensor(trace.loss),
                "offset_sum": buffer.offsets.sum((1, 2)),
                "logits": trace.logits,
                "probs": trace.logits.softmax(-1),
            }
            for quantity, tolerance in NEAR.items():
                assert (near[quantity] - stream[quantity][sample]).abs().max() <= tolerance, (sample, quantity)
            assert abs(trace.entropy_loss - stream["loss_ent"][sample]) <= NEAR["loss"]
            assert abs(trace.penalty - stream["reg"][sample]) <= NEAR["loss"]
