"""The choice of a device, and what an unusable one means for a worker."""

import pytest
import torch

from fpp_sweep.core.compute import choose_device, is_device_failure
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


@pytest.mark.parametrize(
    ("error", "is_failure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA driver error: uncorrectable ECC error encountered"), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"), False),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), False),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), False),
        (RuntimeError("CUDA error: the provided PTX was compiled with an unsupported toolchain."), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx(...)`"), False),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), False),
        (RuntimeError("expected scalar type Half but found Float"), False),
    ],
)
def test_a_full_or_broken_device_is_distinguished_from_a_wrong_computation(error, is_failure):
    assert is_device_failure(error) is is_failure
