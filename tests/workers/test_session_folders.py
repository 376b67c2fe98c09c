"""Folders and processes of killed drivers, with real processes; one test starts a real Ray session."""

import os
import platform
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fpp_sweep.workers import session, session_folders
from fpp_sweep.workers.session_folders import (
    CLOSED,
    MAX_TEMP_PATH,
    OWNER_FILE,
    RAY_FOLDER,
    SESSION_PREFIX,
    _uses,
    cleaner,
    fatal_message,
    is_too_long,
    new_folder,
    remove_abandoned_folders,
    session_processes,
)
from tests.kit.rights import without_root_rights
from tests.kit.waiting import LONG, wait_for

SCRIPT = Path(session_folders.__file__)
RAYLET_PROGRAM = "import subprocess, sys; subprocess.Popen(['sleep', '1000']).wait()"


def test_a_folder_is_too_long_from_the_limit_on():
    assert is_too_long(Path("/" + (MAX_TEMP_PATH - 1) * "a"))
    assert not is_too_long(Path("/" + (MAX_TEMP_PATH - 2) * "a"))


def start_raylet(folder, package="/site-packages/ray/core"):
    """Start a process whose command names the session, as a raylet's does, with a child whose command does not."""
    command = [sys.executable, "-c", RAYLET_PROGRAM, f"{package}/raylet", f"--session={folder}/r/session"]
    return subprocess.Popen(command)


def wait_for_processes(folder, count):
    """Wait until the session has `count` processes, and return them."""

    def expected_processes():
        processes = session_processes(folder)
        return processes if len(processes) == count else None

    return wait_for(expected_processes)


def alive(processes):
    """Return the processes that have not ended. An ended process may remain as a zombie."""
    running = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def kill_all(processes):
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=LONG)


@pytest.fixture
def session_folder(tmp_path):
    folder = tmp_path / f"{SESSION_PREFIX}abcd"
    (folder / "r").mkdir(parents=True)
    return folder


def test_the_cleaner_kills_the_session_of_a_driver_that_ended_without_closing_it(session_folder):
    leader = start_raylet(session_folder)
    processes = wait_for_processes(session_folder, 2)
    cleaner = subprocess.Popen([sys.executable, SCRIPT, session_folder], stdin=subprocess.PIPE)
    assert alive(processes) == processes
    cleaner.communicate(b"", timeout=LONG)
    assert leader.wait(timeout=LONG) == -signal.SIGKILL
    assert alive(processes) == []
    assert not session_folder.exists()


def test_a_driver_that_closes_its_session_waits_for_the_end_of_the_cleaner(session_folder):
    earlier = psutil.Process().children()  # such as helpers of libraries that other tests have started
    with cleaner(str(session_folder)):
        (process,) = set(psutil.Process().children()) - set(earlier)
        words = wait_for(process.cmdline)  # empty until the new process has its own program
        assert str(SCRIPT) in words
    assert not process.is_running()
    assert session_folder.exists()


@pytest.fixture
def python_interrupts():
    """Let SIGINT raise KeyboardInterrupt, as in a terminal: a shell lets its background jobs ignore the signal."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_while_a_session_is_left_leaves_no_half_of_it(session_folder, python_interrupts, interrupts):
    """A notebook goes on after the interrupt, and its next sweep begins another session."""
    leader = start_raylet(session_folder)
    processes = wait_for_processes(session_folder, 2)

    def end():
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        kill_all(session_processes(session_folder))

    with pytest.raises(KeyboardInterrupt):
        session._leave(SimpleNamespace(end=end), str(session_folder))
    assert alive(processes) == []
    leader.wait(timeout=LONG)


def test_the_cleaner_leaves_a_session_alone_that_its_driver_has_closed(session_folder):
    leader = start_raylet(session_folder)
    processes = wait_for_processes(session_folder, 2)
    try:
        cleaner = subprocess.Popen([sys.executable, SCRIPT, session_folder], stdin=subprocess.PIPE)
        cleaner.communicate(CLOSED, timeout=LONG)
        assert cleaner.returncode == 0
        assert alive(processes) == processes
        assert session_folder.exists()
    finally:
        kill_all(processes)
        leader.wait()


def test_a_process_that_reads_a_log_of_the_session_is_not_killed(session_folder):
    log = session_folder / "r" / "raylet.out"
    log.touch()
    with subprocess.Popen(["tail", "-f", log]) as reader:
        assert session_processes(session_folder) == []
        reader.kill()


def ended_process_id():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("owner", "is_removed"),
    [
        ("{machine} {dead}", True),
        ("{machine} {alive}", False),
        ("another-machine {dead}", False),
        ("{machine} 99999999999999999999999", False),
        ("no process", False),
        (None, False),
    ],
)
def test_only_folders_of_dead_drivers_of_this_machine_are_removed(tmp_path, owner, is_removed):
    for prefix in session_folders.PREFIXES:
        folder = tmp_path / f"{prefix}abcd"
        folder.mkdir()
        if owner is not None:
            text = owner.format(machine=platform.node(), dead=ended_process_id(), alive=os.getpid())
            (folder / OWNER_FILE).write_text(text)
    remove_abandoned_folders(str(tmp_path))
    for prefix in session_folders.PREFIXES:
        assert (tmp_path / f"{prefix}abcd").exists() != is_removed


def test_a_folder_that_a_process_of_ray_uses_is_not_removed(session_folder):
    (session_folder / OWNER_FILE).write_text(f"{platform.node()} {ended_process_id()}")
    leader = start_raylet(session_folder)
    processes = wait_for_processes(session_folder, 2)
    try:
        remove_abandoned_folders(str(session_folder.parent))
        assert session_folder.exists()
    finally:
        kill_all(processes)
        leader.wait()
    remove_abandoned_folders(str(session_folder.parent))
    assert not session_folder.exists()


def test_a_process_uses_a_folder_if_one_of_its_open_files_is_there(session_folder, tmp_path):
    code = "import sys; files = [open(name, 'w') for name in sys.stdin.readline().split()]; print(1); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    for names, is_used in ((("log",), False), (("log", f"{session_folder.name}/log"), True)):
        with subprocess.Popen([sys.executable, "-u", "-c", code], cwd=session_folder.parent, **pipes) as process:
            process.stdin.write(" ".join(names) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "1\n"
            assert _uses(psutil.Process(process.pid), session_folder) == is_used
            process.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_cleaner_gets_no_signal_of_the_drivers_group_and_keeps_no_output_open(session_folder):
    with cleaner(str(session_folder)):
        (process,) = [child for child in psutil.Process().children() if str(SCRIPT) in child.cmdline()]
        assert os.getsid(process.pid) == process.pid
        assert os.getpgid(process.pid) == process.pid
        assert os.readlink(f"/proc/{process.pid}/fd/1") == os.devnull


def test_a_link_with_the_name_of_a_session_folder_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / OWNER_FILE).write_text(f"{platform.node()} {ended_process_id()}")
    (tmp_path / f"{SESSION_PREFIX}link").symlink_to(target)
    remove_abandoned_folders(str(tmp_path))
    assert (target / OWNER_FILE).exists()


def test_a_folder_names_its_driver_and_is_removed_at_its_end(tmp_path):
    with new_folder(SESSION_PREFIX, str(tmp_path)) as folder:
        assert (Path(folder) / OWNER_FILE).read_text() == f"{platform.node()} {os.getpid()}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # starts Ray
@pytest.mark.skipif(sys.platform != "linux", reason="Ray's processes are found by their command lines")
def test_a_folder_that_cannot_be_removed_is_left_to_a_later_driver(tmp_path):
    """It keeps the file that names its owner: no driver touches a folder without that file."""
    folder = new_folder(SESSION_PREFIX, str(tmp_path))
    closed = Path(folder.name) / RAY_FOLDER / "closed"
    closed.mkdir(parents=True)
    (closed / "log").touch()
    closed.chmod(0)
    with without_root_rights():
        folder.cleanup()
    assert (Path(folder.name) / OWNER_FILE).exists()
    closed.chmod(0o755)
    (Path(folder.name) / OWNER_FILE).write_text(f"{platform.node()} {ended_process_id()}")
    remove_abandoned_folders(str(tmp_path))
    assert not Path(folder.name).exists()


def test_the_last_fatal_message_of_a_service_is_found_in_its_log(tmp_path):
    logs = tmp_path / RAY_FOLDER / "session_latest/logs"
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text("[2026-11-26 22:07:51,270 I 27170 27170] (gcs_server) main.cc:1: Check\n")
    assert fatal_message(str(tmp_path)) == ""  # and raylet.out does not exist
    (logs / "raylet.out").write_text(
        "[2026-11-26 22:07:34,398 I 27170 27170] (raylet) main.cc:283: Setting\n"
        "[2026-11-26 22:07:51,270 C 27170 27170] (raylet) node_manager.cc:3576:  An unexpected system state has "
        f"occurred. Check failed: has_value() Timed out waiting for file /tmp/ray-m/{'a' * 300}\n"
        "*** StackTrace Information ***\n"
    )
    message = fatal_message(str(tmp_path))
    assert message.startswith("raylet.out: has_value() Timed out waiting for file /tmp/ray-m/aaa")
    assert message.endswith("a ...")


def test_after_a_kill_of_the_driver_its_cleaner_ends_the_real_session(tmp_path):
    program = (
        "import ray, sys, time\n"
        "from fpp_sweep.workers.session import session\n"
        "with session(None, cpus=1, verbose=False):\n"
        "    print(ray._private.worker._global_node.get_session_dir_path(), flush=True)\n"
        "    @ray.remote\n"
        "    def wait(): time.sleep(1000)\n"
        "    ray.get(wait.remote())\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    session = driver.stdout.readline().strip()
    assert session, "Ray did not start"
    folder = Path(session).parent.parent

    def worker_runs():
        processes = session_processes(folder)
        for process in processes:
            with suppress(psutil.Error):  # the process may have ended meanwhile
                if any("ray::wait" in word for word in process.cmdline()):
                    return processes
        return None

    processes = wait_for(worker_runs)
    (cleaner,) = [child for child in psutil.Process(driver.pid).children() if str(SCRIPT) in child.cmdline()]
    driver.kill()
    driver.communicate()
    psutil.wait_procs([cleaner], timeout=LONG)
    assert alive([cleaner]) == []
    # All processes have ended before the cleaner: none had to notice the driver's end by itself.
    assert alive(processes) == []
    assert not folder.exists()
