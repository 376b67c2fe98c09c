"""Settings of the driver's process that only another process can show."""

import os
import signal

import pytest

from fpp_sweep.spec import process
from fpp_sweep.spec.process import cores, interrupts_wait, terminable


def test_a_second_sigterm_does_not_interrupt_the_end_of_an_interrupted_block():
    """Batch systems send it twice; a command and the sweep in it are both terminable."""
    steps = []

    def end_of_command():
        signal.raise_signal(signal.SIGTERM)
        steps.append("ended in order")

    with terminable():
        with pytest.raises(KeyboardInterrupt), terminable():
            signal.raise_signal(signal.SIGTERM)
        end_of_command()
    assert steps == ["ended in order"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_that_is_ignored_stays_ignored(capfd):
    """A shell lets jobs in the background ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_wait("waits for Ray"):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capfd.readouterr().err == ""


def send_signals(numbers, steps):
    """Send signals to this process while interrupts wait."""
    with terminable(), interrupts_wait("waits for Ray"):
        for number in numbers:
            signal.raise_signal(number)
            steps.append(number)


@pytest.fixture
def python_interrupts():
    """Let SIGINT raise KeyboardInterrupt, as in a terminal: a shell lets its background jobs ignore the signal."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("numbers", "delayed"),
    [
        ([signal.SIGINT], 1),
        ([signal.SIGINT, signal.SIGINT], 1),  # the second one does not wait
        ([signal.SIGTERM, signal.SIGTERM], 2),  # batch systems send it twice
    ],
)
def test_the_first_interrupt_waits_for_the_end_of_the_block(capfd, python_interrupts, numbers, delayed):
    """An exception amid an import could leave a lock held."""
    steps = []
    with pytest.raises(KeyboardInterrupt):
        send_signals(numbers, steps)
    assert steps == numbers[:delayed]
    assert capfd.readouterr().err == "waits for Ray\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- the cores of a container


@pytest.fixture
def control_group(tmp_path, monkeypatch):
    """Return a folder for the files of this process's control group, `job` of version 2 and of version 1."""
    groups = tmp_path / "groups"
    groups.write_text("4:cpu,cpuacct:/job\n0::/job\n0::/step:1\n")
    monkeypatch.setattr(process, "OWN_GROUPS", groups)
    monkeypatch.setattr(process, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "quotas"),
    [
        ({}, set()),
        ({"job/cpu.max": "max 100000\n"}, set()),
        ({"job/cpu.max": "150000 100000\n"}, {1.5}),
        ({"job/cpu.max": "max 100000\n", "cpu.max": "50000 100000\n"}, {0.5}),  # of the group around it
        ({"step:1/cpu.max": "150000 100000\n"}, {1.5}),  # the name of a group may have a colon
        ({"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, set()),
        ({"cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, {2.5}),
    ],
)
def test_the_quotas_of_control_groups_are_read(control_group, files, quotas):
    for name, text in files.items():
        (control_group / name).parent.mkdir(parents=True, exist_ok=True)
        (control_group / name).write_text(text)
    assert {*process.cpu_quotas()} == quotas


@pytest.mark.parametrize(("quota", "count"), [("50000", 1), ("150000", 2), ("800000", 4), ("max", 4)])
def test_a_part_of_a_core_counts_as_a_core(control_group, monkeypatch, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    (control_group / "cpu.max").write_text(f"{quota} 100000")
    assert cores() == count
