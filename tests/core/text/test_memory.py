import pytest
import torch

from fpp_sweep.core.text.memory import halving


def test_a_shortage_halves_the_batch_and_nothing_is_lost_or_done_twice():
    seen = []

    def work(rows):
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        seen.extend(rows.tolist())
        return rows * 10

    found = halving(work, torch.arange(13), 8)
    assert torch.equal(found, torch.arange(13) * 10)
    assert seen == list(range(13))


def test_the_cpus_own_shortage_is_known():
    def work(rows):
        return torch.empty(len(rows), 1 << 50) if len(rows) > 1 else rows

    assert halving(work, torch.arange(2), 2).tolist() == [0, 1]


def test_a_shortage_for_a_single_row_and_other_errors_are_passed_on():
    def short(rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken(rows):
        raise RuntimeError("shapes do not match")

    with pytest.raises(torch.OutOfMemoryError):
        halving(short, torch.arange(4), 4)
    with pytest.raises(RuntimeError, match="shapes"):
        halving(broken, torch.arange(4), 4)
