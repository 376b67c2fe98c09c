"""The choice of a device, and what an unusable one means for a worker."""

import pytest
import torch

from fpp_sweep.core.compute import choose_device
from fpp_sweep.spec.errors import DeviceError, InputError
from fpp_sweep.trial.results import TaskFailed


@pytest.mark.parametrize(
    ("error", "kind", "retried"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error\nCompile with TORCH_USE_CUDA_DSA"), DeviceError, True),
        (RuntimeError("No CUDA GPUs are available"), DeviceError, True),
        (AssertionError("Torch not compiled with CUDA enabled"), InputError, False),
    ],
)
def test_a_worker_is_started_again_elsewhere_if_its_gpu_cannot_be_used(monkeypatch, error, kind, retried):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(torch, "zeros", fail)
    with pytest.raises(InputError) as raised:
        choose_device("cuda")
    assert type(raised.value) is kind
    problem = f"device 'cuda' cannot be used: {str(error).splitlines()[0]}"
    assert str(raised.value) == f"{problem}; choose another one, such as cpu"
    assert TaskFailed.of(raised.value).retry_elsewhere is retried
