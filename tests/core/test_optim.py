"""Optimizer steps against torch's AdamW."""

import pytest
import torch

from fpp_sweep.core.optim import adamw


@pytest.mark.parametrize(("lr", "weight_decay"), [(5e-3, 0.01), (0.1, 0.0), (1.0, 0.3)])
def test_steps_equal_torchs_adamw(lr, weight_decay):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 8, generator=generator)
    parameter = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=lr, weight_decay=weight_decay)
    ours, state = start, None
    for _ in range(7):
        gradient = torch.randn(4, 8, generator=generator)
        parameter.grad = gradient.clone()
        optimizer.step()
        ours, state = adamw(ours, gradient, state, lr=lr, weight_decay=weight_decay)
        torch.testing.assert_close(ours, parameter.detach(), atol=1e-6, rtol=1e-6)


def test_a_batch_equals_independent_optimizers():
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(3, 4, generator=generator), torch.randn(2, 3, 4, generator=generator)
    together, state = start, None
    for gradient in gradients:
        together, state = adamw(together, gradient, state, lr=0.1, weight_decay=0.01)
    for row in range(3):
        alone, state = start[row], None
        for gradient in gradients:
            alone, state = adamw(alone, gradient[row], state, lr=0.1, weight_decay=0.01)
        assert torch.equal(alone, together[row])
