"""Memory budgets, smaller batches after a lack of memory, and messages about a lack of memory."""

import pytest
import torch

from fpp_sweep.core.compute import MemoryBudget, explain_out_of_memory, run_in_batches
from fpp_sweep.spec.process import memory

CPU = torch.device("cpu")


def test_out_of_memory_halves_the_batch_and_every_row_is_computed_once():
    computed = []

    def work(rows):
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        computed.extend(rows.tolist())
        return rows * 10

    actual = run_in_batches(work, torch.arange(13), 8)
    assert torch.equal(actual, torch.arange(13) * 10)
    assert computed == list(range(13))


def test_out_of_memory_of_the_cpu_allocator_is_recognised():
    def work(rows):
        return torch.empty(len(rows), 1 << 50) if len(rows) > 1 else rows

    assert run_in_batches(work, torch.arange(2), 2).tolist() == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "OutOfMemoryError: CUDA out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_out_of_memory_messages_of_cuda_libraries_are_recognised(text):
    """They come as RuntimeError, from torch.compile with the type of the error in the text.

    The last is cuDNN's message if every algorithm needs more memory than is free.
    """

    def work(rows):
        if len(rows) > 1:
            raise RuntimeError(text)
        return rows

    assert run_in_batches(work, torch.arange(3), 2).tolist() == [0, 1, 2]
    line = explain_out_of_memory(RuntimeError(text), CPU)
    assert str(line).startswith(f"out of memory ({text}); ")


def test_out_of_memory_for_a_single_row_and_other_errors_are_raised():
    def run_out_of_memory(rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def fail(rows):
        raise RuntimeError("shapes do not match")

    with pytest.raises(torch.OutOfMemoryError):
        run_in_batches(run_out_of_memory, torch.arange(4), 4)
    with pytest.raises(RuntimeError, match="shapes"):
        run_in_batches(fail, torch.arange(4), 4)


def test_processes_that_share_a_device_get_equal_budgets():
    _, whole = memory()
    for share in (0.01, 0.5, 1.0):
        budget = MemoryBudget.available(CPU, share)
        assert 0 < budget.device <= share * whole
    assert MemoryBudget.available(CPU, 1e-6).device == pytest.approx(1e-6 * whole)


def test_a_gpu_that_is_already_full_is_reported_in_one_line(monkeypatch):
    def full(device):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    error = RuntimeError("CUDA error: out of memory\nCUDA kernel errors might")
    line = str(explain_out_of_memory(error, torch.device("cuda")))
    assert line.startswith("out of memory (CUDA error: out of memory); 0.0 GiB are free on cuda; ")


def test_a_lack_of_memory_is_reported_in_one_line_and_other_errors_are_not_changed():
    try:
        torch.empty(1 << 50)
    except RuntimeError as error:
        line = explain_out_of_memory(error, CPU)
    assert isinstance(line, MemoryError)
    assert str(line).endswith(" GiB are free on cpu; use a larger device or fewer workers on it")
    assert line.__cause__ is not None
    another = RuntimeError("shapes do not match")
    assert explain_out_of_memory(another, CPU) is another
