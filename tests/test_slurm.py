"""cluster/slurm.sbatch in a private SLURM whose nodes have separate names, addresses, folders and processes."""

import os
import random
import re
import sqlite3
import subprocess
import time
from contextlib import closing

import pytest

from benchmarks.resume import finished
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import load_space
from tests.kit.processes import ROOT, SMALL_SPACE, assert_same_as_in_one_process
from tests.kit.slurm import missing_requirement, slurm
from tests.kit.study import exported_study
from tests.kit.waiting import wait_for

SCRIPT = ROOT / "cluster/slurm.sbatch"
ROUNDS = int(os.environ.get("FPP_SLURM_ROUNDS", "1"))  # interruptions of each kind; a nightly run may set more
TRIALS = 12 + 8 * ROUNDS
SPACE = SMALL_SPACE.replace(", workers: 1", "").replace("trials: 4", f"trials: {TRIALS}")
# A requeue ends every process on the nodes; the signal reaches the batch shell alone, as before a time limit.
INTERRUPTIONS = ("scontrol requeue", "scancel --batch --signal=TERM")
# One call for each kind of Ray's servers: a server refuses its own call without a token by grpc-status 16.
CALLS = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
)
CALL_COMMAND = (
    "printf '\\0\\0\\0\\0\\0' | curl -s -D - -o /dev/null --http2-prior-knowledge -H 'content-type: application/grpc' "
)
CALL_COMMAND += "-H 'te: trailers' --data-binary @- http://{}/ray.rpc.{}"


@pytest.fixture(scope="module")
def cluster():
    if reason := missing_requirement():
        pytest.skip(reason)
    with slurm(nodes=2) as cluster:
        (cluster.home / "small.yaml").write_text(SPACE)
        yield cluster


def test_the_script_is_valid_bash_and_marks_the_values_of_the_user():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    lines = SCRIPT.read_text().splitlines()
    values = ("--job-name=", "--nodes=", "--gpus-per-node=", "--cpus-per-task=", "--time=", "environment=", "sweeps=")
    for value in values:
        (line,) = [line for line in lines if re.match(rf"(#SBATCH )?{value}", line)]
        assert "# CHANGE" in line
    assert (
        sum("CHANGE" in line for line in lines) == len(values) + 2
    )  # two comments: the meaning of the word, and options of some sites


def submit(cluster, name, *words):
    """Submit the shipped script for two nodes with one core each."""
    # The script has variables with these names too and must not be affected.
    environment = "FPP_SWEEP_CACHE=$PWD/cache folder=$PWD/data resume=--verbose"
    options = f"--parsable --job-name={name} --output={name}.log --gpus-per-node=0 --cpus-per-task=1"
    return cluster.run(f"{environment} sbatch {options} {SCRIPT} --space small.yaml {' '.join(words)}")


def is_idle(cluster):
    """Return True if only SLURM runs on the nodes and no temporary files are left on them or on the shared disk."""
    running = [line for node in cluster.nodes for line in node.processes().values() if not line.startswith("slurmd")]
    left = [*cluster.folder.glob("machines/*/tmp/fpp-*"), *cluster.home.glob("sweeps/.*")]
    return not running and not left


def count_tasks(sweep):
    return len([*sweep.glob("tasks/*/*.task")])


def read_log(cluster):
    return (cluster.home / "found.log").read_text()


@pytest.mark.nightly
@pytest.mark.slow  # starts about six Ray clusters one after the other
def test_a_sweep_continues_after_every_loss_of_its_machines(cluster):
    sweep = cluster.home / "sweeps/found"
    draw = random.Random()
    tasks = 0  # finished when the job started last
    job = submit(cluster, "found")
    wait_for(lambda: finished(sweep))
    assert_only_owner_has_access(cluster)
    wait_for(lambda: all("ray::WorkerActor" in str(node.processes()) for node in cluster.nodes))
    for number, interruption in enumerate(INTERRUPTIONS * ROUNDS, start=1):
        if "signal" in interruption:  # a job that finished no task would not be queued again
            wait_for(lambda tasks=tasks: count_tasks(sweep) > tasks)
        before = finished(sweep)
        began = time.monotonic()
        cluster.run(f"{interruption} {job}")
        wait_for(lambda number=number: cluster.job(job).get("Restarts") == str(number))
        wait_for(lambda: cluster.job(job)["JobState"] == "RUNNING")
        tasks = count_tasks(sweep)
        seconds = time.monotonic() - began
        assert before.items() <= finished(sweep).items(), read_log(cluster)  # no finished trial is lost or runs again
        if draw.random() < 0.25:  # the next interruption may come during the start
            time.sleep(draw.uniform(0, 10))
        else:
            wait_for(lambda before=before: len(finished(sweep)) > len(before))
            time.sleep(draw.uniform(0, 2))
        print(f"{interruption}: {len(before)} trials, again after {seconds:.0f} s, {len(finished(sweep))} trials")
    cluster.run(f"scancel {job}")
    wait_for(lambda: cluster.job(job)["JobState"] == "CANCELLED" and not cluster.run(f"squeue --noheader --job={job}"))
    wait_for(lambda: is_idle(cluster))
    before = finished(sweep)
    jobs = [
        submit(cluster, "found"),
        submit(cluster, "beside", "--trials", "2"),
    ]  # two jobs on the same nodes at the same time
    for job in jobs:
        wait_for(lambda job=job: cluster.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
        assert cluster.job(job)["JobState"] == "COMPLETED", read_log(cluster)
    wait_for(lambda: is_idle(cluster))
    assert before.items() <= finished(sweep).items()
    assert len(finished(cluster.home / "sweeps/beside")) == 2
    assert_complete(cluster, SweepFolder.open(sweep))


def assert_only_owner_has_access(cluster):
    """Check that only the owner can read the token, no process shows it, and every port requires it."""
    (token,) = cluster.home.glob("sweeps/.*/token")
    assert (token.stat().st_mode & 0o777, token.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    secret = token.read_text().strip()
    assert len(secret) == 64
    for node in cluster.nodes:
        assert not node.run_unchecked(f"cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | grep -a -f {token}").stdout
        (folder,) = cluster.folder.glob(f"machines/{node.name}/tmp/fpp-*")
        assert folder.stat().st_mode & 0o777 == 0o700  # the folder of Ray's sockets
        listening = [line.split() for line in node.run("ss -Hltnp").splitlines()]
        ports = {
            words[3].rpartition(":")[2]: words[5] for words in listening if not re.search("slurmd|srun|sshd", words[5])
        }
        assert len(ports) >= 3
        for port, owner in ports.items():
            server = f"{node.address}:{port}"
            answers = [
                cluster.site.machines[0].run_unchecked(CALL_COMMAND.format(server, call)).stdout for call in CALLS
            ]
            answers.append(
                cluster.site.machines[0]
                .run_unchecked(f"curl -s -o /dev/null -w 'HTTP %{{http_code}}' -d x {server}")
                .stdout
            )
            refused = [text for text in answers if re.search(r"grpc-status: 16\b|HTTP 401", text)]
            assert len(refused) == 1, (owner, answers)
            assert not re.search(r"grpc-status: 0\b|HTTP 200", "".join(answers).replace("HTTP/2 200", "")), (
                owner,
                answers,
            )


def assert_complete(cluster, sweep):
    """Check that every store has all trials once, with the results of one process."""
    assert sweep.info().state == "finished"
    assert [record.state for record in sweep.trials()] == ["complete"] * (TRIALS + 1)
    study = exported_study(sweep.study_file)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * TRIALS
    with closing(sqlite3.connect(cluster.home / "mlflow.db")) as store:
        assert store.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall() == [
            ("FINISHED", TRIALS + 2 + 4)
        ]
    assert_same_as_in_one_process(sweep, load_space(cluster.home / "small.yaml"), cluster.home / "one")


@pytest.mark.nightly
@pytest.mark.slow
def test_wrong_input_ends_the_job_with_one_line_and_leaves_no_files(cluster):
    data = cluster.home / "data"
    data.mkdir()
    # The default of 30 s equals the time in which `ray start` ignores signals while it waits for a lost head.
    cluster.run("echo KillWait=20 >> ../slurm.conf; scontrol reconfigure")
    job = submit(cluster, "bad", "--set", "search.trial=3")
    wait_for(lambda: cluster.job(job)["JobState"] == "FAILED")
    assert cluster.job(job)["ExitCode"] == "2:0"
    (line,) = re.findall(r"^error: .*", (cluster.home / "bad.log").read_text(), flags=re.M)
    assert "search.trial" in line
    wait_for(lambda: is_idle(cluster))
    (cluster.home / "env").rename(cluster.home / "elsewhere")
    try:
        job = submit(cluster, "bare")
        wait_for(lambda: cluster.job(job)["JobState"] == "FAILED")
    finally:
        (cluster.home / "elsewhere").rename(cluster.home / "env")
    (line,) = (cluster.home / "bare.log").read_text().splitlines()
    assert "env/bin/activate: No such file or directory" in line
    assert data.is_dir()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_whose_time_ends_before_its_first_task_is_not_queued_again(cluster):
    job = submit(cluster, "brief")
    log = cluster.home / "brief.log"
    wait_for(lambda: log.is_file() and "sweep     brief" in log.read_text())
    cluster.run(f"scancel --batch --signal=TERM {job}")
    wait_for(lambda: cluster.job(job)["JobState"] == "FAILED")
    assert cluster.job(job)["Restarts"] == "0"
    assert "brief is not queued again, because it finished no task; give it more time with --time\n" in log.read_text()
    wait_for(lambda: is_idle(cluster))
