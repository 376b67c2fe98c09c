"""cluster/slurm.sbatch in a SLURM of one's own: nodes with hostnames, addresses, folders and processes of their own."""

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
from tests.kit.waiting import wait_for

SCRIPT = ROOT / "cluster/slurm.sbatch"
ROUNDS = int(os.environ.get("FPP_SLURM_ROUNDS", "1"))  # interruptions of each kind; a nightly run may take more
TRIALS = 12 + 8 * ROUNDS
SPACE = SMALL_SPACE.replace(", workers: 1", "").replace("trials: 4", f"trials: {TRIALS}")
# SLURM takes the machines away, and tells every process; what it sends the batch shell some time before that
KINDS = ("scontrol requeue", "scancel --batch --signal=TERM")
# a call that each of Ray's servers knows, and its own answer where the token is missing
CALLS = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
)
ASK = (
    "printf '\\0\\0\\0\\0\\0' | curl -s -D - -o /dev/null --http2-prior-knowledge -H 'content-type: application/grpc' "
)
ASK += "-H 'te: trailers' --data-binary @- http://{}/ray.rpc.{}"


@pytest.fixture(scope="module")
def there():
    if reason := missing_requirement():
        pytest.skip(reason)
    with slurm(nodes=2) as cluster:
        (cluster.home / "small.yaml").write_text(SPACE)
        yield cluster


def test_it_is_bash_and_what_is_the_users_is_marked():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    lines = SCRIPT.read_text().splitlines()
    values = ("--job-name=", "--nodes=", "--gpus-per-node=", "--cpus-per-task=", "--time=", "environment=", "sweeps=")
    for value in values:
        (line,) = [line for line in lines if re.match(rf"(#SBATCH )?{value}", line)]
        assert "# CHANGE" in line
    assert sum("CHANGE" in line for line in lines) == len(values) + 2  # what the word means; what sites want


def submit(there, name, *words):
    """Submit the script as it is shipped: two nodes, a core of each."""
    # of no concern to the script, which has variables of such names
    environment = "FPP_SWEEP_CACHE=$PWD/cache folder=$PWD/data resume=--verbose"
    options = f"--parsable --job-name={name} --output={name}.log --gpus-per-node=0 --cpus-per-task=1"
    return there.run(f"{environment} sbatch {options} {SCRIPT} --space small.yaml {' '.join(words)}")


def idle(there):
    """Nothing runs on the nodes but SLURM, and nothing lies about, on them or on what they share."""
    running = [line for node in there.nodes for line in node.processes().values() if not line.startswith("slurmd")]
    left = [*there.folder.glob("machines/*/tmp/fpp-*"), *there.home.glob("sweeps/.*")]
    return not running and not left


def log(there):
    return (there.home / "found.log").read_text()


@pytest.mark.nightly
@pytest.mark.slow  # half a dozen Ray clusters, one after the other
def test_a_sweep_goes_on_where_it_was_whenever_its_machines_are_taken_away(there):
    sweep = there.home / "sweeps/found"
    draw = random.Random()
    job = submit(there, "found")
    wait_for(lambda: finished(sweep))
    assert_guarded(there)
    wait_for(lambda: all("ray::WorkerActor" in str(node.processes()) for node in there.nodes))
    for number, interruption in enumerate(KINDS * ROUNDS, start=1):
        before = finished(sweep)
        began = time.monotonic()
        there.run(f"{interruption} {job}")
        wait_for(lambda number=number: there.job(job).get("Restarts") == str(number))
        wait_for(lambda: there.job(job)["JobState"] == "RUNNING")
        seconds = time.monotonic() - began
        assert before.items() <= finished(sweep).items(), log(there)  # no finished trial is lost, or run again
        if draw.random() < 0.25:  # while it starts
            time.sleep(draw.uniform(0, 10))
        else:
            wait_for(lambda before=before: len(finished(sweep)) > len(before))
            time.sleep(draw.uniform(0, 2))
        print(f"{interruption}: {len(before)} trials, again after {seconds:.0f} s, {len(finished(sweep))} trials")
    there.run(f"scancel {job}")
    wait_for(lambda: there.job(job)["JobState"] == "CANCELLED" and not there.run(f"squeue --noheader --job={job}"))
    wait_for(lambda: idle(there))
    before = finished(sweep)
    jobs = [submit(there, "found"), submit(there, "beside", "--trials", "2")]  # on the same nodes at the same time
    for job in jobs:
        wait_for(lambda job=job: there.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
        assert there.job(job)["JobState"] == "COMPLETED", log(there)
    wait_for(lambda: idle(there))
    assert before.items() <= finished(sweep).items()
    assert len(finished(there.home / "sweeps/beside")) == 2
    assert_whole(there, SweepFolder.open(sweep))


def assert_guarded(there):
    """Check that only the owner can read the token, that no process shows it, and that every port asks for it."""
    (token,) = there.home.glob("sweeps/.*/token")
    assert (token.stat().st_mode & 0o777, token.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    secret = token.read_text().strip()
    assert len(secret) == 64
    for node in there.nodes:
        assert not node.run_unchecked(f"cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | grep -a -f {token}").stdout
        (folder,) = there.folder.glob(f"machines/{node.name}/tmp/fpp-*")
        assert folder.stat().st_mode & 0o777 == 0o700  # Ray's sockets
        listening = [line.split() for line in node.run("ss -Hltnp").splitlines()]
        ports = {
            words[3].rpartition(":")[2]: words[5] for words in listening if not re.search("slurmd|srun|sshd", words[5])
        }
        assert len(ports) >= 3
        for port, owner in ports.items():
            door = f"{node.address}:{port}"
            controller = there.site.machines[0]
            answers = [controller.run_unchecked(ASK.format(door, call)).stdout for call in CALLS]
            post = f"curl -s -o /dev/null -w 'HTTP %{{http_code}}' -d x {door}"
            answers.append(controller.run_unchecked(post).stdout)
            refused = [text for text in answers if re.search(r"grpc-status: 16\b|HTTP 401", text)]
            assert len(refused) == 1, (owner, answers)
            assert not re.search(r"grpc-status: 0\b|HTTP 200", "".join(answers).replace("HTTP/2 200", "")), (
                owner,
                answers,
            )


def assert_whole(there, sweep):
    """All trials are there once, in every store, and are those of one machine."""
    assert sweep.info().state == "finished"
    assert [record.state for record in sweep.trials()] == ["complete"] * (TRIALS + 1)
    with closing(sqlite3.connect(sweep.study_file)) as study:
        assert study.execute("SELECT number, state FROM trials ORDER BY number").fetchall() == [
            (number, "COMPLETE") for number in range(TRIALS)
        ]
    with closing(sqlite3.connect(there.home / "mlflow.db")) as store:
        assert store.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall() == [
            ("FINISHED", TRIALS + 2 + 4)
        ]
    assert_same_as_in_one_process(sweep, load_space(there.home / "small.yaml"), there.home / "one")


@pytest.mark.nightly
@pytest.mark.slow
def test_bad_input_ends_the_job_with_its_line_and_leaves_nothing(there):
    data = there.home / "data"
    data.mkdir()
    # 30 by default, which is as long as `ray start` is deaf while it asks for a head that has gone already
    there.run("echo KillWait=20 >> ../slurm.conf; scontrol reconfigure")
    job = submit(there, "bad", "--set", "search.trial=3")
    wait_for(lambda: there.job(job)["JobState"] == "FAILED")
    assert there.job(job)["ExitCode"] == "2:0"
    (line,) = re.findall(r"^error: .*", (there.home / "bad.log").read_text(), flags=re.M)
    assert "search.trial" in line
    wait_for(lambda: idle(there))
    (there.home / "env").rename(there.home / "elsewhere")
    try:
        job = submit(there, "bare")
        wait_for(lambda: there.job(job)["JobState"] == "FAILED")
    finally:
        (there.home / "elsewhere").rename(there.home / "env")
    (line,) = (there.home / "bare.log").read_text().splitlines()
    assert "env/bin/activate: No such file or directory" in line
    assert data.is_dir()
