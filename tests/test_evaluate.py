"""The command itself, in a process of its own, as a user types it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from pyarrow import parquet

from fpp_sweep import evaluate
from fpp_sweep.cli.command import run
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from tests.builders import build_coop, jpeg
from tests.disks import mounted
from tests.waiting import LONG, wait_for

TINY = ["--datasets", "digits", "scenes", "--limit", "12", "--set", "fpp.steps=3", "views.count=8"]


def command(*words, folder):
    cache = ["--cache", str(folder / "cache")]
    line = [sys.executable, "-m", "fpp_sweep.evaluate", *map(str, words), *cache]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)


def told(*words, folder):
    """The one line of an error, after checking that there is one and nothing else."""
    done = command(*words, folder=folder)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.slow
def test_a_run_prints_tables_and_writes_everything_that_it_names(tmp_path):
    out = tmp_path / "out"
    done = command(*TINY, "--out", out, "--seed", 0, 1, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tpt from fpp, seed 1" in done.stdout
    assert "mean over 2 seeds" in done.stdout
    assert len(re.findall("from .*: .*(better|worse|not told apart).* than|not told apart from", done.stdout)) >= 3
    results = json.loads((out / "results.json").read_text())
    assert len(results["trials"]) == 8
    for trial in results["trials"]:
        assert set(trial["datasets"]) == {"digits", "scenes"}
        for name, found in trial["datasets"].items():
            low, high = found["intervals"]["accuracy"].values()
            assert low <= found["metrics"]["accuracy"] <= high
            assert found["intervals"]["ece"].startswith("no interval: biased by few images (12 of a dataset")
            folder = out / trial["files"]
            seeded = f"{name}.seed{trial['seed']}"
            rows = parquet.read_table(folder / "test" / f"{seeded}.predictions.parquet").to_pydict()
            assert len(set(rows["id"])) == found["samples"] == 12
            right = [label == predicted for label, predicted in zip(rows["label"], rows["predicted"], strict=True)]
            assert found["metrics"]["accuracy"] == pytest.approx(100 * sum(right) / 12)
            with Image.open(folder / "test" / "reliability.png") as picture:
                assert picture.size[0] > 400
            pretrained = trial["config"]["prompt"] == "fpp"
            assert (folder / "prompts" / f"{seeded}.safetensors").exists() == pretrained
        average = sum(found["metrics"]["ece"] for found in trial["datasets"].values()) / 2
        assert trial["averages"]["average"]["metrics"]["ece"] == pytest.approx(average)


@pytest.mark.slow
def test_a_saved_prompt_gives_the_numbers_of_the_run_that_made_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    words = ["--datasets", "digits", "--limit", 12, "--method", "tpt", "--set", "views.count=8", "fpp.steps=3"]
    assert command(*words, "--prompt", "fpp", "--out", first, folder=tmp_path).returncode == 0
    (prompt,) = first.rglob("prompts/digits.seed0.safetensors")
    assert command(*words, "--prompt", prompt, "--out", second, folder=tmp_path).returncode == 0

    def metrics(out):
        return json.loads((out / "results.json").read_text())["trials"][0]["datasets"]["digits"]["metrics"]

    assert metrics(first) == metrics(second)


@pytest.mark.slow
def test_a_disk_that_is_full_names_the_folder(tmp_path):
    with mounted(tmp_path / "small", "size=16k") as small:
        words = [*TINY, "--method", "zero_shot", "--prompt", "a photo of a", "--out", small / "out"]
        assert f"--out {small / 'out'}: No space left" in told(*words, folder=tmp_path)


@pytest.mark.slow
def test_a_dataset_without_a_readable_image_is_told(tmp_path):
    build_coop(tmp_path / "data", "eurosat")
    for path in (tmp_path / "data").rglob("*.jpg"):
        path.write_bytes(b"")
    words = [
        "--data-root",
        tmp_path / "data",
        "--datasets",
        "eurosat",
        "--method",
        "zero_shot",
        "--on-bad-image",
        "skip",
    ]
    done = command(*words, "--prompt", "a photo of a", "--out", tmp_path / "out", folder=tmp_path)
    assert done.returncode == 2
    assert "eurosat: none of its" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_run_and_its_workers_quietly(tmp_path):
    words = ["--datasets", "scenes", "--limit", "2000", "--loaders", "1", "--out", str(tmp_path / "out")]
    line = [sys.executable, "-m", "fpp_sweep.evaluate", *words, "--cache", str(tmp_path / "cache")]
    run = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background has it ignored
    )
    wait_for(lambda: list((tmp_path / "cache").rglob("[!.]*.safetensors")))  # the first of 32 shards
    os.killpg(run.pid, signal.SIGINT)
    _, told = run.communicate(timeout=LONG)
    assert run.returncode == 130
    assert told.strip().splitlines()[-1] == "interrupted"
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_decodes_is_one_line_and_what_was_whole_stays(tmp_path):
    words = ["--datasets", "scenes", "--limit", "2000", "--loaders", "1", "--prompt", "a photo of a"]
    line = [sys.executable, "-m", "fpp_sweep.evaluate", *words, "--cache", str(tmp_path / "cache")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([*line, "--method", "tpt", "--out", str(tmp_path / "out")], **pipes)
    whole = wait_for(lambda: list((tmp_path / "cache").rglob("[!.]*.safetensors")))  # the first of 32 shards
    os.kill(reading(run.pid), signal.SIGKILL)
    _, told = run.communicate(timeout=LONG)
    assert run.returncode in (1, 2), told
    (error,) = (line for line in told.splitlines() if line.startswith("error:"))
    assert "a process that reads images has died (DataLoader worker" in error
    assert "--loaders" in error
    assert "Traceback" not in told
    assert all(path.exists() for path in whole)


def reading(parent):
    """The process of a run that reads images."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (found,) = (int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())
    return found


def test_a_device_too_small_for_the_model_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fpp_sweep.trial.worker.load", lambda *asked: torch.empty(1 << 50))
    words = ["--device", "cpu", "--datasets", "digits", "--limit", "2", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        run(lambda: evaluate.main(words))
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: needs 4194304.0 GiB, [0-9.]+ GiB are free on cpu; give it a larger device, .*", line)


@pytest.mark.slow
def test_half_precision_runs_and_is_named_in_the_results(tmp_path):
    words = [*TINY, "precision=fp16", "--method", "tpt", "--prompt", "a photo of a"]
    done = command(*words, "--out", tmp_path / "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads((tmp_path / "out" / "results.json").read_text())["trials"]
    assert trial["config"]["precision"] == "fp16"


@pytest.mark.slow
def test_a_corrupt_image_fails_the_run_or_is_skipped_and_counted(tmp_path):
    root = tmp_path / "data"
    build_coop(root, "eurosat")
    broken = sorted((root / "eurosat" / "2750").rglob("*.jpg"))
    broken[-1].write_bytes(jpeg()[:200])
    words = ["--data-root", root, "--datasets", "eurosat", "--method", "zero_shot", "--prompt", "a photo of a"]
    splits = []
    for split in ("train", "val", "test"):
        done = command(*words, "--split", split, "--out", tmp_path / f"fail-{split}", folder=tmp_path)
        splits.append(done.returncode)
        if done.returncode:
            (error,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
            assert broken[-1].name in error
            again = [*words, "--split", split, "--out", tmp_path / "skip", "--on-bad-image", "skip"]
            skipped = command(*again, folder=tmp_path)
            assert skipped.returncode == 0, skipped.stderr
            assert "skipped eurosat: 1 images" in skipped.stdout
    assert sorted(splits) == [0, 0, 2]


@pytest.mark.slow
def test_bad_input_is_one_clear_line(tmp_path):
    def line(*words):
        return told(*words, "--out", tmp_path / "out", folder=tmp_path)

    assert "did you mean 'ViT-B-16'" in line("--model", "ViT-B-61/openai")
    assert "openai" in line("--model", "ViT-B-16/opnai")
    assert "did you mean 'eurosat'" in line("--datasets", "eurosta")
    assert "did you mean 'ctpt'" in line("--method", "ctp")
    assert "did you mean 'fpp.gamma2'" in line("--set", "fpp.gama2=1")
    assert "nowhere" in line("--data-root", tmp_path / "nowhere", "--datasets", "dtd")
    assert "--limit: must be >= 1, got 0" in line("--limit", 0)
    assert "must be >= 0, got -1" in line("--set", "fpp.class_var=-1")
    assert "invalid int value: 'one'" in line("--seed", "one")
    assert "--seed.1: must be >= 0, got -1" in line("--seed", "0", "-1")
    assert "device 'meta' cannot be used" in line("--device", "meta")
    assert "device 'cuda:99' cannot be used: " in line("--device", "cuda:99")
    assert "precision tf32: needs a GPU with" in line("--device", "cpu", "--set", "precision=tf32")
    assert "--anchor-prompt fpp" in line("--anchor-prompt", "fpp")
    assert "use --method" in line("--set", "method=otpt")
    assert "needs 78 tokens" in line("--prompt", "x " * 73)
    assert "has no words" in line("--prompt", "")
    assert "does not exist" in line("--prompt", tmp_path / "no.safetensors")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_results_is_never_written_to(tmp_path):
    (tmp_path / "results.json").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        evaluate.new_folder(tmp_path)
    assert (tmp_path / "results.json").read_text() == "precious"
    with pytest.raises(InputError, match="out"):
        evaluate.new_folder(tmp_path / "results.json")


def test_the_trials_are_every_combination_with_the_models_own_preset():
    args = evaluate.parse(["--method", "tpt", "otpt", "--prompt", "fpp", "a", "--seed", "0", "1"])
    trials = evaluate.trials_of(args)
    assert len({(keys.of_config(config), seed) for config, seed in trials}) == 8
    assert {config.fpp.steps for config, _ in trials} == {60}
    code = evaluate.trials_of(evaluate.parse(["--model", "ViT-B-16/openai"]))
    assert {config.fpp.steps for config, _ in code} == {1000}


def test_an_option_that_argparse_refuses_is_bad_input_too():
    with pytest.raises(InputError, match="unrecognized arguments: --methods"):
        evaluate.parse(["--methods", "tpt"])


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-2), ("tf32", 1e-2), ("fp16", 5e-2)])
def test_the_same_numbers_come_out_on_a_gpu(tmp_path, precision, most):
    assert torch.cuda.is_available()
    metrics = {}
    for device, setting in (("cpu", "float32"), ("cuda", precision)):
        words = (*TINY, f"precision={setting}", "--device", device, "--loaders", 2, "--out", tmp_path / device)
        done = command(*words, folder=tmp_path / device)
        assert done.returncode == 0, done.stderr
        trials = json.loads((tmp_path / device / "results.json").read_text())["trials"]
        metrics[device] = [found["metrics"]["nll"] for trial in trials for found in trial["datasets"].values()]
    # other kernels, and features in half precision: NLL agrees to a few thousandths
    assert metrics["cpu"] == pytest.approx(metrics["cuda"], abs=most)


def test_a_config_file_is_what_trials_are_unless_the_command_line_says_otherwise(tmp_path):
    file = tmp_path / "knee.yaml"
    file.write_text(
        "config: {method: otpt, prompt: fpp, anchor_prompt: a, fpp.gamma2: 3.5, adapt.penalty_weight: null}\n"
    )
    ((config, seed),) = evaluate.trials_of(evaluate.parse(["--config", str(file), "--set", "fpp.steps=7"]))
    assert (config.method, config.prompt, config.anchor_prompt, config.fpp.gamma2, config.fpp.steps) == (
        "otpt",
        "fpp",
        "a",
        3.5,
        7,
    )
    assert seed == 0
    methods = [
        config.method
        for config, _ in evaluate.trials_of(evaluate.parse(["--config", str(file), "--method", "tpt", "ctpt"]))
    ]
    assert methods == ["tpt", "ctpt"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fpp.gamma2: 1\n", "unknown key 'fpp.gamma2'"),
        ("config: {fpp.gama2: 1}\n", ":1: config.fpp.gama2: unknown config key 'fpp.gama2', did you mean 'fpp.gamma2'"),
        ("config: {fpp.steps: -1}\n", "fpp.steps must be >= 0"),
        ("{}\n", "has no `config:`"),
    ],
)
def test_a_config_file_that_is_none_is_refused_with_its_name(tmp_path, text, complaint):
    file = tmp_path / "knee.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(complaint)) as error:
        evaluate.trials_of(evaluate.parse(["--config", str(file)]))
    assert str(file) in str(error.value)


def test_sharpness_is_refused_before_anything_is_loaded_where_a_method_has_no_prompt_for_each_sample():
    args = evaluate.parse(["--columns", "logits", "product"])
    with pytest.raises(InputError, match="product cannot be measured of method zero_shot: it looks at 1 of"):
        evaluate.trials_of(args)
    trials = evaluate.trials_of(evaluate.parse(["--columns", "product", "--method", "tpt", "tpt_sam"]))
    assert {config.method for config, _ in trials} == {"tpt", "tpt_sam"}
