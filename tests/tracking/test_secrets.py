"""Secrets in MLflow's address stay secret; a folder from elsewhere decides neither about stores nor about files."""

import stat
from dataclasses import replace
from importlib.metadata import version
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fpp_sweep import sync
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.inspection import mlflow_versions
from fpp_sweep.tracking import check_store, mlflow_links, sync_folder
from fpp_sweep.tracking.desired import FrontDocument
from fpp_sweep.tracking.folder_sync import LOCK_FILE
from fpp_sweep.tracking.sync_state import STATE_FILE, SyncState
from fpp_sweep.tracking.uri import server_version
from tests.kit.records import build_sweep
from tests.kit.stores import authenticating_proxy, free_port, server

PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).map(lambda text: f"S3{text}cret")
SHAPES = st.sampled_from(
    ["postgresql://me:{}@db/mlflow", "https://{}@host:5000", "mysql+pymysql://db/x?user=me&password={}&ssl=1"]
)
SPACE = "params: {fpp.gamma1: {low: 0.1, high: 10}}"


@given(PASSWORDS, SHAPES)
@example("S3/a@b?c#:cret", "ftp://me:{}@db/mlflow")
@example("S3cret", "me:{}@db")
def test_the_refusal_of_an_address_does_not_show_its_password(password, shape):
    uri = shape.format(password)
    if uri.startswith("postgresql") and not set(password) & set("/?#@[]\\ \0"):
        uri = f"ftp{uri}"
    with pytest.raises(InputError) as refusal:
        check_store(uri.replace("mysql", "nosql").replace("https://", "gopher://"))
    assert "cret" not in str(refusal.value)


def files_containing(folder, *words):
    """Return the files below a folder that contain one of these words."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path for path in files if any(word.encode() in path.read_bytes() for word in words)}


def test_a_store_on_record_that_the_user_has_not_used_before_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    for uri in (f"http://127.0.0.1:{free_port()}", f"sqlite:///{tmp_path}/theirs.db", "mysql://evil/x?local_infile=1"):
        folder.write_info(replace(folder.info(), tracking_uri=uri))
        with pytest.raises(InputError, match=r"have not used its MLflow, .*, before; .* go: --into"):
            sync.main([str(folder.path)])
    assert not (tmp_path / "theirs.db").exists()


def test_a_store_that_was_used_before_is_used_again(tmp_path, database, uri, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    sync.main([str(folder.path), "--into", uri])
    folder.write_info(replace(folder.info(), tracking_uri=uri))
    sync.main([str(folder.path)])
    stores = tmp_path / "config/fpp_sweep/stores"
    assert len(stores.read_text().splitlines()) == 1
    assert stat.S_IMODE(stores.stat().st_mode) == 0o600


def test_links_are_not_followed(tmp_path, uri, capsys):
    secret = tmp_path / "private"
    secret.mkdir()
    (secret / "key").write_text("S3cret")
    folder = build_sweep(tmp_path / "perturb-1", trials=2, failed_trials=())
    (folder.report / "key.txt").symlink_to(secret / "key")
    (folder.report / "linked").symlink_to(secret)
    (folder.report / "page.html").symlink_to("sweep.html")
    (folder.report / "record.txt").symlink_to("../sweep.json")  # which may hold the store's password
    before = (secret / "key").read_text()
    (folder.path / LOCK_FILE).unlink(missing_ok=True)
    sync.main([str(folder.path), "--into", uri])
    uploaded = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file()]
    assert {path.name for path in uploaded} >= {"sweep.html"}
    assert not {path.name for path in uploaded} & {"page.html", "record.txt", "key.txt"}
    assert not files_containing(tmp_path / "mlartifacts", "S3cret")
    err = capsys.readouterr().err
    assert err.startswith("note: left out 4 files (too large, or a link), such as ")
    assert (secret / "key").read_text() == before


def test_a_lock_that_is_a_link_is_not_opened(tmp_path, uri):
    (tmp_path / "mine").write_text("kept")
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    for name in ("lock", LOCK_FILE):
        (folder.path / name).symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="lock"), folder.locked():
        pass
    with pytest.raises(InputError, match="lock"):
        sync_folder(folder, uri)
    assert (tmp_path / "mine").read_text() == "kept"


DAMAGED_STATES = [
    '{"runs": {"sweep": {"run_id": ["a"]}}, "experiment": 3}',
    '{"runs": {"sweep": {"files": 3}}}',
    '{"runs": [1], "experiment": "\\u001b[2J"}',
    "\ud800".encode(errors="surrogatepass"),
]


@pytest.mark.parametrize("damaged", DAMAGED_STATES)
def test_a_state_file_with_wrong_types_is_ignored(tmp_path, uri, damaged):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    (folder.path / STATE_FILE).write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    assert SyncState.read(folder) == SyncState()
    assert mlflow_links(folder, "http://host:5000") == ["http://host:5000"]
    assert sync_folder(folder, uri).created == 2


DAMAGED_FRONTS = [
    '{"members": 3}',
    '{"members": [{}]}',
    '{"hypervolume": [[1]]}',
    "[]",
    '{"members": [1]}',
    '{"members": [{"name": "trial-0000"}], "hypervolume": [["x", 1]]}',
    '{"members": [{"name": "trial-0000"}], "hypervolume": 3}',
    '{"support": 3}',
]


@pytest.mark.parametrize("damaged", DAMAGED_FRONTS)
def test_a_front_with_wrong_types_is_ignored(tmp_path, uri, damaged):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    (folder.report / "front.json").write_text(damaged)
    assert FrontDocument.read(folder) == FrontDocument()
    assert sync_folder(folder, uri).created == 2


def test_texts_with_control_characters_arrive_once(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2, failed_trials=(1,), baselines=())
    info = folder.info()
    strange = {"a/b\\..": "x", "": "y", "esc\x1b": "\x1b[2J\0", "half": "\ud800", "long": "z" * 2**20}
    folder.write_info(replace(info, name="p/../\x1b" + "n" * 2**20, versions=strange))
    record = folder.trial("trial-0001")
    folder.write_trial(
        replace(record, reason="\ud800\x1b" + "r" * 2**20, details="\ud800\0", config={"a\0b": "\ud800"})
    )
    assert sync_folder(folder, uri).created == 3
    (folder.path / STATE_FILE).unlink()
    assert sync_folder(folder, uri).created == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_server_is_asked_for_its_version_with_the_secrets_of_mlflow(tmp_path, empty_database, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    names = [f"MLFLOW_TRACKING_{name}" for name in ("USERNAME", "PASSWORD", "TOKEN")]
    here = version("mlflow"), version("mlflow")
    password = "S3/a@b:cret"
    with server(tmp_path, empty_database) as mlflow:
        mlflow.start()
        assert mlflow_versions(mlflow.uri) == here
        with (
            authenticating_proxy(mlflow.uri, user="me", password=password) as basic,
            authenticating_proxy(mlflow.uri, token=password) as bearer,
        ):
            for address, secrets, fits in (
                (f"me:{quote(password, safe='')}@{basic}", (), True),
                (basic, ("me", password), True),
                (bearer, ("", "", password), True),
                (f"me:S3cret@{basic}", (), False),
                (bearer, ("", "", "S3cret"), False),
            ):
                with monkeypatch.context() as inherited:
                    for name, secret in zip(names, secrets, strict=False):
                        inherited.setenv(name, secret)
                    if fits:
                        assert mlflow_versions(f"http://{address}") == here
                        continue
                    for ask in (mlflow_versions, server_version):
                        with pytest.raises(InputError, match="401") as refusal:
                            ask(f"http://{address}")
                        assert "cret" not in str(refusal.value)
