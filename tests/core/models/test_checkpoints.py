"""Checkpoints of CoOp and MaPLe: their tensors are read, and no code in a file is run."""

import os
import pickle

import pytest
import torch
from torch import nn

from fpp_sweep.core.models.clip import read_tensors
from fpp_sweep.spec.errors import InputError


class Touch:
    """An object that creates a folder when it is unpickled by a reader that runs code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def message(path):
    """Return the line with which a file is refused, without the path at its beginning."""
    with pytest.raises(InputError) as caught:
        read_tensors(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pickle_with_code_is_refused_and_the_code_not_run(tmp_path, protocol, wrapped):
    path, touched = tmp_path / "evil.pt", tmp_path / "touched"
    content = {"state_dict": {"weight": torch.ones(2), "evil": Touch(touched)}}
    if wrapped:
        torch.save(content, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    message(path)
    assert not touched.exists()


def test_a_checkpoint_that_holds_a_scheduler_and_its_optimizer_gives_its_tensors(tmp_path):
    """In CoOp's checkpoints, the state of a warm-up scheduler holds the next scheduler, which holds the optimizer."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(2)
    optimizer.step()
    follower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    context = torch.randn(4, 8)
    content = {"state_dict": {"ctx": context}, "epoch": 50, "scheduler": {"successor": follower, "last_epoch": 1}}
    torch.save(content, tmp_path / "model.pth.tar-50")
    tensors = read_tensors(tmp_path / "model.pth.tar-50")
    assert list(tensors) == ["state_dict.ctx"]
    assert torch.equal(tensors["state_dict.ctx"], context)


@pytest.mark.parametrize("content", [b"", b"hello, this is no checkpoint\n", bytes(range(97, 250))])
def test_a_file_that_is_not_a_checkpoint_is_refused_with_one_line(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    assert "not a" in message(tmp_path / "x.pt")
