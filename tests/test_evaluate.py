"""`evaluate`: a sweep without a search, in this process or on Ray; some tests run the command as a user does."""

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from pyarrow import parquet

from fpp_sweep import compare, evaluate, show, steer
from fpp_sweep.cli import overrides, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.progress import repeat_command
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import plural, runnable
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.command_line import space_to_evaluate
from fpp_sweep.sweep.estimate import dry_run
from fpp_sweep.sweep.local_run import local_worker_spec, run_locally
from tests.kit.datasets import build_coop, build_folders, jpeg
from tests.kit.disks import mounted
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.processes import environment
from tests.kit.waiting import LONG, wait_for

FAST = ["fpp.steps=3", "views.count=8"]
SMALL = ["--datasets", "digits", "scenes", "--limit", "12", "--set", *FAST]


def parse_command(*words):
    """Return the space that `main` builds from a command line."""
    args = evaluate.parse([str(word) for word in words])
    trials = {"config": args.config, "methods": args.method, "prompts": args.prompt}
    return space_to_evaluate(overrides(args), **trials, anchor_prompt=args.anchor_prompt)


def configs_of(*words):
    space = parse_command(*words)
    return [space.resolve(values) for _, values in space.queue()]


def start_command(folder, *words):
    """Start the command in a new process that writes to `sweeps` of the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "fpp_sweep.evaluate", *map(str, words)],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a background process of a shell ignores SIGINT
    )


def run_command(folder, *words, code=0):
    process = start_command(folder, *words)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == code, out + err
    return out, err


def number_of_tasks(dry_run):
    return sum(int(count) for count in re.search(r"tasks: (\d+) pretrainings, (\d+) evaluations", dry_run).groups())


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


# --- the trials of a command line ---------------------------------------------------------------------


def test_trials_are_every_combination_with_the_preset_of_the_model():
    words = ["--method", TPT, "otpt", "--prompt", "fpp", "a", "--seed", "0", "1"]
    assert [(config.method, config.prompt) for config in configs_of(*words)] == [
        (TPT, "fpp"),
        ("otpt", "fpp"),
        (TPT, "a"),
        ("otpt", "a"),
    ]
    assert parse_command(*words).work.seeds == (0, 1)
    assert {config.fpp.steps for config in configs_of(*words)} == {60}
    assert {config.fpp.steps for config in configs_of("--model", "ViT-B-16/openai")} == {1000}
    assert {config.fpp.gamma2 for config in configs_of("--set", "preset=paper", "fpp.gamma1=2")} == {0.15}


def test_an_evaluation_has_no_search_and_one_split():
    space = parse_command()
    assert (space.search.split, space.search.evaluate_only, space.search.trials) == ("test", True, 4)
    assert space.baselines() == {}
    assert parse_command("--set", "search.split=train").search.split == "train"


def test_the_command_line_overrides_settings_of_a_config_file(tmp_path):
    file = tmp_path / "knee.yaml"
    file.write_text(
        "config: {method: otpt, prompt: fpp, anchor_prompt: a, fpp.gamma2: 3.5, adapt.penalty_weight: null}\n"
    )
    (config,) = configs_of("--config", file, "--set", "fpp.steps=7")
    assert (config.method, config.prompt, config.anchor_prompt) == ("otpt", "fpp", "a")
    assert (config.fpp.gamma2, config.fpp.steps) == (3.5, 7)
    assert [config.method for config in configs_of("--config", file, "--method", TPT, "ctpt")] == [TPT, "ctpt"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("fpp.gamma2: 1\n", "has no `config:`"), ("config: {fpp.steps: -1}\n", "config.fpp.steps: must be >= 0 (-1)")],
)
def test_a_config_file_that_cannot_be_used_is_refused_with_its_name(tmp_path, text, complaint):
    file = tmp_path / "knee.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(complaint)) as error:
        parse_command("--config", file)
    assert str(file) in str(error.value)


def test_sharpness_is_refused_for_a_method_without_a_prompt_for_each_sample():
    with pytest.raises(InputError, match="product cannot be measured of method zero_shot: it uses 1 of"):
        parse_command("--set", "work.columns=[logits, product]")
    methods = {config.method for config in configs_of("--set", "work.columns=[product]", "--method", TPT, "tpt_sam")}
    assert methods == {TPT, "tpt_sam"}


def test_keys_configure_the_worker_of_this_process():
    words = ["work.float32_cache=true", "work.cache=here"]
    spec = local_worker_spec(parse_command("--model", "ViT-B-16/openai", "--set", *words), ())
    assert (spec.float32_cache, spec.cache) == (True, "here")
    assert (spec.device, spec.device_share) == ("auto", 1.0)
    tiny = local_worker_spec(parse_command(), ())
    assert (tiny.threads, tiny.loaders) == (1, 0)
    chosen = local_worker_spec(parse_command("--set", "work.threads=3", "work.loaders=2", "work.device=cuda:1"), ())
    assert (chosen.threads, chosen.loaders, chosen.device) == (3, 2, "cuda:1")
    assert local_worker_spec(parse_command("--set", "work.gpus_per_worker=0"), ()).device == "cpu"


# --- one evaluation and its outputs -------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The folder of an evaluation of four trials with two seeds, and the outputs of the command."""
    root = tmp_path_factory.mktemp("evaluated")
    out, err = run_command(root, *SMALL, "--seed", 0, 1, "--name", "four")
    return SweepFolder(root / "sweeps" / "four"), out, err


@pytest.mark.slow
def test_a_run_prints_tables_and_writes_everything_that_it_names(evaluated):
    folder, out, err = evaluated
    assert [record.state for record in folder.trials()] == ["complete"] * 4
    assert folder.info().state == "finished"
    for number in range(4):
        assert f"\ntrial-{number:04d}: prompt=" in out
        assert f"\ntrial-{number:04d}  accuracy " in err
    assert out.index("trial-0003: prompt=fpp, method=tpt") < out.index("four is finished; trials: 4 complete.")
    assert out.index("trials of four on test") < out.index("\npage        file://") < out.index("\nresults     ")
    assert (folder.report / "sweep.html").is_file()
    results = results_of(folder.path)
    assert len(results["trials"]) == 4
    for trial in results["trials"]:
        assert set(trial["datasets"]) == {"digits", "scenes"}
        assert set(trial["by_seed"]) == {"0", "1"}
        files = folder.path / trial["files"]
        for name in trial["datasets"]:
            for metric in ("accuracy", "ece"):  # 12 images are too few for an interval
                assert trial["intervals"][f"{metric}/{name}"].startswith("no interval: ")
            for seed, by_dataset in trial["by_seed"].items():
                rows = parquet.read_table(files / f"test/{name}.seed{seed}.predictions.parquet").to_pydict()
                assert len(set(rows["id"])) == 12
                right = [label == predicted for label, predicted in zip(rows["label"], rows["predicted"], strict=True)]
                assert by_dataset[name]["accuracy"] == pytest.approx(100 * sum(right) / 12)
                pretrained = trial["config"]["prompt"] == "fpp"
                assert (files / f"prompts/{name}.seed{seed}.safetensors").exists() == pretrained
        with Image.open(files / "test" / "reliability.png") as picture:
            assert picture.size[0] > 400
        mean = sum(metrics["ece"] for metrics in trial["datasets"].values()) / 2
        assert trial["average"]["ece"] == pytest.approx(mean)


@pytest.mark.slow
def test_show_compare_and_steer_accept_an_evaluation_like_a_sweep(evaluated, monkeypatch, capsys):
    folder, _, _ = evaluated
    monkeypatch.chdir(folder.path.parent.parent)
    show.main(["four"])
    table = capsys.readouterr().out.partition("trials of four")[2]
    assert {f"trial-{number:04d}" for number in range(4)} <= set(
        table.split()
    )  # trials that are not on the front are shown too
    compare.main(["four", "trial-0000", "trial-0003"])
    assert "fewer than 30 images" in capsys.readouterr().out
    show.main(["four", "--page"])
    assert "sweep.html" in capsys.readouterr().out
    with pytest.raises(InputError, match="was run by `evaluate`, which takes no further points"):
        steer.main(["four", "add", "method=tpt"])


@pytest.mark.slow  # imports MLflow
def test_an_evaluation_is_delivered_to_mlflow_by_a_flag_or_by_sync(evaluated):
    folder, out, _ = evaluated
    root = folder.path.parent.parent
    assert "\nMLflow      " in out
    assert not (root / "mlflow.db").exists()
    line = [sys.executable, "-m", "fpp_sweep.sync", "four"]
    done = subprocess.run(line, cwd=root, env=environment(root), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("four: 5 runs brought up to date, 5 of them new\n")
    words = ["--datasets", "scenes", "--limit", "5", "--method", ZERO_SHOT, "--prompt", "a", "--name", "delivered"]
    out, _ = run_command(root, *words, "--tracking-uri", "sqlite:///own.db")
    assert f"\nMLflow      {runnable(f'mlflow ui --backend-store-uri sqlite:///{root}/own.db')}" in out
    with closing(sqlite3.connect(root / "own.db")) as store:
        assert store.execute("SELECT count(*) FROM runs WHERE status = 'FINISHED'").fetchone() == (1 + 1,)


@pytest.mark.slow  # imports MLflow
def test_an_evaluation_that_mlflow_refuses_at_its_end_keeps_its_results(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def damage_the_store(folder, record):
        Path("own.db").write_text("no database" * 100)

    requested = replace(options, tracking_uri="sqlite:///own.db")
    sweep = run_locally(small_space(), requested, damage_the_store)
    assert (sweep.info.state, len(sweep.trials())) == ("finished", 2)
    err = capsys.readouterr().err
    assert "MLflow is behind (" in err
    assert re.search(r"\); bring it up to date later with:\n +.*sync .*small --into sqlite:///.*own\.db\n", err)


@pytest.mark.slow
def test_numbers_are_the_same_bits_in_this_process_and_on_ray(evaluated):
    """The folder has the same files. On Ray, too, there is no search and only one split."""
    folder, _, _ = evaluated
    root = folder.path.parent.parent
    words = ["--workers", "2", "--set", *FAST, "work.reuse_results=false"]
    run_command(root, *SMALL, *words, "--seed", 0, 1, "--name", "on_ray")
    on_ray = SweepFolder(root / "sweeps" / "on_ray")
    for own, other in zip(folder.trials(), on_ray.trials(), strict=True):
        assert (own.name, own.key, own.state) == (other.name, other.key, other.state)
        assert dict(own.results["test"].by_seed) == dict(other.results["test"].by_seed)
        assert list(other.results) == ["test"]
    assert (on_ray.path / "results.json").is_file()


# --- failed and continued runs ------------------------------------------------------------------------


def small_space(*assignments):
    """Return a space with a zero-shot trial and a TPT trial on ten images."""
    words = ["--prompt", "a photo of a", "--datasets", "scenes", "--limit", "10", "--set", *FAST, *assignments]
    return parse_command(*words)


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path / "cache"))
    return Options(root=tmp_path / "sweeps", name="small")


def test_an_evaluation_in_this_process_starts_no_ray_and_runs_one_split(options):
    ended = []
    sweep = run_locally(small_space("search.split=val"), options, lambda folder, record: ended.append(record.name))
    assert ended == ["trial-0000", "trial-0001"]
    assert [list(record.results) for record in sweep.trials()] == [["val"], ["val"]]
    assert sweep.info.state == "finished"
    assert not sweep.folder.study_file.exists()
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
    rows = [record.name for record in front_of(sweep.info, sweep.trials()).compared]
    assert sorted(rows) == ["trial-0000", "trial-0001"]  # the table has all trials, not only the front


def test_an_interrupted_evaluation_continues_where_it_stopped(options):
    def interrupt(folder, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_locally(small_space(), options, interrupt)
    folder = SweepFolder(options.root / "small")
    assert folder.info().state == "interrupted"
    first, second = folder.trials()
    assert (first.state, second.state) == ("complete", "waiting")
    done = folder.measured_tasks()
    whole, left = dry_run([small_space()]), dry_run([small_space()], folder.trials(), done)
    assert f"\ndone already: {plural(len(done), 'task')}\n" in left
    assert number_of_tasks(left) == number_of_tasks(whole) - len(done) > 0
    with pytest.raises(InputError, match=r"small cannot be resumed: .*\(work\.seeds: .* -> \[7\]\)"):
        run_locally(small_space("work.seeds=[7]"), replace(options, resume=True))
    run_locally(small_space(), replace(options, resume=True))
    assert folder.trial(first.name) == first
    assert [record.state for record in folder.trials()] == ["complete", "complete"]
    assert folder.info().state == "finished"
    damaged, numbers = folder.trial_file(second.name), folder.trial(second.name).values
    damaged.write_text("{")
    with pytest.raises(InputError, match=r"trial-0001\.json: not readable .*; delete it; the trial runs again"):
        run_locally(small_space(), replace(options, resume=True))
    damaged.unlink()
    run_locally(small_space(), replace(options, resume=True))
    assert folder.trial(second.name).values == numbers


def test_a_trial_that_fails_leaves_the_others_and_its_reason(options, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--method", TPT, ZERO_SHOT, "--prompt", "fpp", "--datasets", "scenes", "--limit", "5", "--name", "bad"]
    with pytest.raises(SystemExit) as ended:
        evaluate.main([*words, "--set", "fpp.lr=1e38", "fpp.steps=2", "views.count=4"])
    assert ended.value.code == 1
    folder = SweepFolder(tmp_path / "sweeps" / "bad")
    assert [record.state for record in folder.trials()] == ["failed", "failed"]
    assert folder.info().state == "failed"
    out = capsys.readouterr().out
    assert re.search(r"trial-0000 failed: scenes, pretraining, seed 0, .*finite", out)
    assert "\n    repeat      " in out


def test_too_many_consecutive_failures_end_the_run_and_a_resume_tries_them_again(options, capsys):
    words = ["--method", TPT, ZERO_SHOT, "ctpt", "--prompt", "fpp", "--datasets", "scenes", "--limit", "5"]
    space = parse_command(*words, "--set", *FAST, "fpp.lr=1e38", "search.max_failures=2")
    sweep = run_locally(space, options)
    states = [record.state for record in sweep.trials()]
    assert states == ["failed", "failed", "waiting"]
    assert "note: 2 trials in a row failed; the others are not begun" in capsys.readouterr().err
    run_locally(space, replace(options, resume=True))
    assert [(record.state, record.attempt) for record in sweep.trials()[:2]] == [("failed", 2)] * 2


def space_that_is_refused(folder):
    """Return a space that is refused when its sweep has a folder already: its prompt is a damaged file."""
    prompt = folder / "bad.safetensors"
    prompt.write_text("junk")
    return parse_command("--method", ZERO_SHOT, "--prompt", str(prompt), "--datasets", "scenes", "--limit", "4")


@pytest.mark.parametrize("content", ["chapter.tex", ".git", "data/images"])
def test_a_folder_with_the_users_own_files_is_refused_and_stays_unchanged(options, tmp_path, content):
    own = options.root / "small"
    (own / content).parent.mkdir(parents=True)
    (own / content).write_text("precious")
    with pytest.raises(InputError, match=r"small: the folder is not empty \(.*\); begin the sweep with another --name"):
        run_locally(space_that_is_refused(tmp_path), options)
    assert (own / content).read_text() == "precious"
    assert [path.name for path in own.iterdir()] == [content.partition("/")[0]]


def test_a_refused_sweep_leaves_no_folder(options, tmp_path):
    with pytest.raises(InputError, match="not a database or server"):
        run_locally(small_space(), replace(options, tracking_uri="gopher://host"))
    assert not (options.root / "small").exists()
    with pytest.raises(InputError, match=r"bad\.safetensors"):
        run_locally(space_that_is_refused(tmp_path), options)
    assert not SweepFolder(options.root / (options.name or "")).path.exists()


def test_an_error_after_the_first_trial_undoes_nothing(options):
    def refuse(folder, record):
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        run_locally(small_space(), options, refuse)
    folder = SweepFolder(options.root / (options.name or ""))
    assert folder.info().state == "interrupted"
    folder.write_info(replace(folder.info(), state="failed"))
    with pytest.raises(InputError, match="no more"):
        run_locally(small_space(), replace(options, resume=True), refuse)
    assert folder.info().state == "interrupted"


@pytest.mark.slow
def test_ctrl_c_ends_a_run_and_its_processes_and_prints_how_to_continue(tmp_path):
    words = ["--datasets", "scenes", "--limit", "2000", "--set", "work.loaders=1"]
    process = start_command(tmp_path, *words)
    wait_for(lambda: list((tmp_path / "cache").rglob("[!.]*.safetensors")))  # the first of 32 chunks
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130
    (folder,) = (tmp_path / "sweeps").glob("evaluate-*")
    title, command = err.splitlines()[-2:]
    assert title == "interrupted; to continue:"
    assert command.endswith(f" evaluate --resume {folder.name}")
    assert "Traceback" not in err


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_image_reader_is_reported_in_one_line_and_finished_chunks_stay(tmp_path):
    words = ["--datasets", "scenes", "--limit", "2000", "--prompt", "a photo of a", "--method", TPT]
    process = start_command(tmp_path, *words, "--set", "work.loaders=1")
    finished_chunks = wait_for(lambda: list((tmp_path / "cache").rglob("[!.]*.safetensors")))  # the first of 32 chunks
    os.kill(image_reader_of(process.pid), signal.SIGKILL)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 1, err
    assert "a process that reads images has died; " in out + err
    assert "--set work.loaders=N" in out + err
    assert "Traceback" not in err
    assert all(path.exists() for path in finished_chunks)


def image_reader_of(parent):
    """Return the id of the child process that reads images."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (child,) = (int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())
    return child


def test_a_device_too_small_for_the_model_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fpp_sweep.trial.worker.load", lambda *model_and_device: torch.empty(1 << 50))
    words = ["--datasets", "digits", "--limit", "2", "--set", "work.device=cpu"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: evaluate.main(words))
    assert ended.value.code == 1
    line = capsys.readouterr().err.splitlines()[-1]
    end = r"[0-9.]+ GiB are free on cpu; use a larger device or fewer workers on it"
    assert re.fullmatch(rf"error: out of memory \(.*\); {end}", line)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_a_remedy(tmp_path):
    with mounted(tmp_path / "small", "size=16k") as small:
        words = [*SMALL, "--method", ZERO_SHOT, "--prompt", "a photo of a", "--out", small]
        _, err = run_command(tmp_path, *words, code=1)
        assert re.search(rf"error: {small}/.*No space left on device; make room, then go on with --resume", err)


# --- images and prompts -------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
def test_a_saved_prompt_gives_the_numbers_of_its_run(tmp_path):
    words = ["--datasets", "digits", "--limit", 12, "--method", TPT, "--set", *FAST]
    run_command(tmp_path, *words, "--prompt", "fpp", "--name", "first")
    (prompt,) = (tmp_path / "sweeps" / "first").rglob("prompts/digits.seed0.safetensors")
    run_command(tmp_path, *words, "--prompt", prompt, "--name", "second")
    first, second = (results_of(tmp_path / "sweeps" / name)["trials"][0] for name in ("first", "second"))
    assert first["datasets"] == second["datasets"]


def test_a_corrupt_image_fails_the_trial_and_is_named(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "data"
    build_coop(root, "eurosat")
    broken = sorted((root / "eurosat" / "2750").rglob("*.jpg"))[-1]
    broken.write_bytes(jpeg()[:200])
    words = ["--data-root", str(root), "--datasets", "eurosat", "--method", ZERO_SHOT, "--prompt", "a photo of a"]
    splits = {}
    for split in ("train", "val", "test"):
        sweep = run_locally(parse_command(*words, "--set", f"search.split={split}"), replace(options, name=split))
        splits[split] = sweep.trials()[0]
    (failed,) = [split for split, record in splits.items() if record.state == "failed"]
    assert broken.name in splits[failed].reason


@pytest.mark.nightly
@pytest.mark.slow
def test_half_precision_runs_and_is_named_in_the_results(tmp_path):
    words = [*SMALL, "precision=fp16", "--method", TPT, "--prompt", "a photo of a", "--name", "half"]
    run_command(tmp_path, *words)
    (trial,) = results_of(tmp_path / "sweeps" / "half")["trials"]
    assert trial["config"]["precision"] == "fp16"


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-2), ("tf32", 1e-2), ("fp16", 5e-2)])
def test_a_gpu_gives_nearly_the_same_numbers(tmp_path, precision, tolerance):
    assert torch.cuda.is_available()
    metrics = {}
    for device, setting in (("cpu", "float32"), ("cuda", precision)):
        words = [*SMALL, f"precision={setting}", f"work.device={device}", "work.loaders=2", "--name", device]
        run_command(tmp_path, *words)
        trials = results_of(tmp_path / "sweeps" / device)["trials"]
        metrics[device] = [values["nll"] for trial in trials for values in trial["datasets"].values()]
    # A GPU has other kernels and caches features in half precision: NLL agrees to a few thousandths.
    assert metrics["cpu"] == pytest.approx(metrics["cuda"], abs=tolerance)


WRONG_INPUTS = [
    (["--set", "work.device=cuda:99"], "device 'cuda:99' cannot be used: "),
    (["--anchor-prompt", "fpp"], "--anchor-prompt fpp: must be words or a prompt file"),
    (["--set", "method=otpt"], "give --method instead"),
    (["--prompt", "x " * 73], "needs 78 tokens"),
    (["--prompt", " "], "has no words"),
    (["--resume"], "nothing to resume: sweeps has no evaluation;"),
    (["--out", "/proc/x"], "--out /proc/x: "),
]


@pytest.mark.parametrize(("words", "complaint"), WRONG_INPUTS)
def test_wrong_input_is_refused_in_one_line_and_leaves_no_files(tmp_path, monkeypatch, capsys, words, complaint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(lambda: evaluate.main(words))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    announced = [line for line in err.splitlines() if re.match(r"(sweep|evaluates|work|budget|folder|page) ", line)]
    (line,) = [line for line in err.splitlines() if line not in announced]
    assert line.startswith("error: ")
    assert complaint in line
    assert out == ""
    assert not list((tmp_path / "sweeps").glob("*"))


# --- a folder of images -------------------------------------------------------------------------------


def test_a_folder_of_images_is_evaluated_resumed_and_repeated_by_its_path(tmp_path, monkeypatch, capsys):
    build_folders(tmp_path / "my photos", ["cat", "big_dog"], count=10)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path / "cache"))
    words = ["--datasets", "mine=my photos", "--method", ZERO_SHOT, "--prompt", "a photo of a", "--name", "own"]
    evaluate.main(words)
    folder = SweepFolder(tmp_path / "sweeps/own")
    assert list(folder.trial("trial-0000").results["test"].datasets) == ["mine"]
    assert folder.info().space["work"]["datasets"] == ["mine=my photos"]
    again = shlex.split(repeat_command(folder, folder.info(), folder.trial("trial-0000")))
    evaluate.main([*again[again.index("evaluate") + 1 :], "--name", "again"])
    repeated = SweepFolder(tmp_path / "sweeps/again").trial("trial-0000")
    assert repeated.results["test"].average == folder.trial("trial-0000").results["test"].average
    capsys.readouterr()
    evaluate.main(["--resume", "own"])
    assert "own is finished; trials: 1 complete." in capsys.readouterr().out
