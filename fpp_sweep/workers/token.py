"""Ray's token, which lets a process run code in a session: where it is kept, and who can read it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from fpp_sweep.spec.messages import note

OTHER_USERS = 0o077  # the bits of a mode that are not the owner's


def is_required() -> bool:
    """Return whether Ray asks for a token by its settings; Ray ignores the case of the mode."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def is_named() -> bool:
    """Return whether the user's environment has the token or names its file."""
    return bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys())


def default_file() -> Path:
    """Return the file in which Ray keeps its token by default."""
    return Path.home() / ".ray" / "auth_token"


def token_file() -> Path:
    """Return the file that Ray reads its token from, unless the environment has the token itself."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or default_file())


def create_token(file: Path) -> None:
    """Create a token, readable for this user only, unless there is one; create its folder as well."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    # readable for this user only; without a buffer, a full disk is noticed here and not again when the file is closed
    with suppress(FileExistsError), NamedTemporaryFile("wb", buffering=0, dir=file.parent) as partial:
        partial.write(secrets.token_hex(32).encode())
        os.link(partial.name, file)


def protect_token() -> None:
    """Create the token of this user's sessions, or make it private; Ray would make it readable for all."""
    if is_named():
        return
    file = default_file()
    create_token(file)
    for path, mode in ((file.parent, 0o700), (file, 0o600)):
        if path.stat().st_uid == os.getuid() and path.stat().st_mode & OTHER_USERS:
            path.chmod(mode)
            note(f"{path} was readable for other users; now it is readable for you only")
