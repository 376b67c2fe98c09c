"""Checks before the start of Ray: each refusal names the key or flag, the value and the remedy."""

import socket

import pytest

from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Options, sweep_folder
from fpp_sweep.sweep.plan import check_before_start
from fpp_sweep.workers.session import require_reachable
from tests.kit.datasets import build_folders
from tests.kit.disks import mounted
from tests.kit.spaces import small_space
from tests.kit.stores import free_port


@pytest.fixture(scope="module")
def on_cluster():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Options(address=f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["work.model=ViT-B-16:/nowhere/b16.pt"],
            "model 'ViT-B-16:/nowhere/b16.pt': /nowhere/b16.pt is not a file; give the path of a checkpoint",
        ),
        (["search.margin={ece/letters: 1}"], "unknown dataset in metric ece/letters"),
        (["params.prompt=[fpp, gone.pt]"], "prompt file gone.pt does not exist"),
        (["params.precision=[float32, tf32]", "work.gpus_per_worker=0"], "precision tf32: needs a GPU"),
    ],
)
def test_a_space_that_cannot_run_here_is_refused_except_on_a_cluster(overrides, complaint, on_cluster):
    with pytest.raises(InputError) as refusal:
        check_before_start(small_space(*overrides), Options())
    assert complaint in str(refusal.value)
    check_before_start(small_space(*overrides), on_cluster)


def test_a_folder_of_images_that_lacks_a_split_is_refused_before_ray_starts(tmp_path):
    build_folders(tmp_path, ["val/cat", "val/dog"])
    dataset = f"work.datasets=[mine={tmp_path}]"
    check_before_start(small_space(dataset, "search.evaluate_only=true"), Options())
    with pytest.raises(InputError, match=rf"mine: {tmp_path} has no test split, only val"):
        check_before_start(small_space(dataset), Options())


def test_a_split_that_a_dataset_never_has_is_refused_before_ray_starts(tmp_path):
    overrides = ["work.datasets=[dtd,imagenet_a]", f"work.data_root={tmp_path}"]
    with pytest.raises(InputError) as refusal:
        check_before_start(small_space(*overrides), Options())
    assert "imagenet_a has only a test split, not 'val'; leave this dataset out" in str(refusal.value)
    check_before_start(small_space(*overrides, "search.split=test"), Options())


def test_a_broken_link_in_place_of_the_folder_of_sweeps_is_refused(tmp_path):
    (tmp_path / "sweeps").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="sweeps is not a folder; name a folder that can be written"):
        sweep_folder(small_space(), Options(root=tmp_path / "sweeps"))


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match=f"^work.cache: {file}/cache: Not a directory; name a folder that can be"):
        check_before_start(small_space(f"work.cache={file}/cache"), Options())
    with pytest.raises(
        InputError, match=f"^--out {file}/sweeps: {file} is not a folder; name a folder that can be written"
    ):
        sweep_folder(small_space(), Options(root=file / "sweeps"))


def test_a_read_only_disk_is_refused_as_cache_and_for_sweeps(tmp_path):
    with mounted(tmp_path / "forbidden", "size=64k,ro") as disk:
        with pytest.raises(InputError, match=f"^work.cache: {disk}: Read-only file system; "):
            check_before_start(small_space(f"work.cache={disk}"), Options())
        with pytest.raises(InputError, match=f"^--out {disk}: the folder cannot be written; name one that can"):
            sweep_folder(small_space(), Options(root=disk))


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        (
            "127.0.0.1:UNUSED",
            "--address 127.0.0.1:UNUSED: cannot be reached ([Errno 111] Connection refused); see with",
        ),
        ("127.0.0.1:99999", "--address 127.0.0.1:99999: cannot be reached ("),
        ("somewhere", "--address somewhere: expected auto, local or HOST:PORT"),
        ("ray://head:10001", "--address ray://head:10001: run the command on the cluster's head node"),
    ],
)
def test_an_address_where_no_process_listens_is_refused_before_ray_starts(address, complaint):
    port = str(free_port())
    with pytest.raises(InputError) as refusal:
        check_before_start(small_space(), Options(address=address.replace("UNUSED", port)))
    assert str(refusal.value).startswith(complaint.replace("UNUSED", port))


def test_auto_means_the_cluster_of_the_environment(monkeypatch, on_cluster):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match=r"^--address auto: RAY_ADDRESS=127.0.0.1:\d+: cannot be reached"):
        require_reachable("auto")
    monkeypatch.setenv("RAY_ADDRESS", on_cluster.address)
    require_reachable("auto")
