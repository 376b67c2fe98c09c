"""Secrets in texts: passwords and queries of addresses, and values of the environment, are masked by ***."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache

# ends of the names of environment variables that hold secrets, in capital letters
_SECRET_NAME = re.compile(
    r"(PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD|TOKEN|SECRET|CREDENTIALS?|_PAT|API_?KEY|PRIVATE_KEY|ACCESS_KEY(_ID)?)"
    r"(_\d+)?$"
)
MIN_SECRET = 6  # characters; a shorter value would occur in any text

_ADDRESS = re.compile(r"(?<!sqlite)://")  # any kind but a database in a file
_QUERY_OR_FRAGMENT = re.compile(r"[?#]")
_NAMED_SECRET = re.compile(r"(?i)\b(password|passwd|pwd|token|access_token|api_?key|secret)=(['\"]?)[^\s&;,'\"]+")
_BEARER = re.compile(r"(?i)\b(bearer) [\w.~+/=-]{8,}")


def masked(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return text without the passwords and queries of addresses in it, and without other secrets.

    Other secrets are those of the environment, by default searched for in each call, and text such as token=abc.

    >>> masked("postgresql://me:secret@db/mlflow?sslpassword=secret"), masked("http://me:secret@host/#/runs?view=1")
    ('postgresql://***@db/mlflow?***', 'http://***@host/#/runs?view=1')
    """
    if secrets is None:
        secrets = secrets_of_environment()
    return _without_recognised_secrets(_without(secrets, text))


def masked_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, without secrets."""
    text = _without(secrets_of_environment(), text)  # a secret may have several lines
    return "\n".join(_without_recognised_secrets(line) for line in text.split("\n"))


def secrets_of_environment() -> list[str]:
    """Return the values of environment variables with names such as HF_TOKEN, the longest first.

    The longest is masked first, as one value may begin with another.
    """
    secrets = []
    for name in os.environ:  # each value is decoded when it is read
        if _is_secret(name) and len(os.environ[name]) >= MIN_SECRET:
            secrets.append(os.environ[name])
    return sorted(secrets, key=len, reverse=True)


@cache
def _is_secret(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def _without(secrets: Sequence[str], text: str) -> str:
    """Return text in which each of these secrets is masked."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _without_recognised_secrets(text: str) -> str:
    """Mask the secrets that are recognised by the text around them."""
    if "://" in text:
        text = _without_secrets_of_addresses(text)
    if "=" in text:
        text = _NAMED_SECRET.sub(r"\1=\2***", text)
    if "earer" in text:
        text = _BEARER.sub(r"\1 ***", text)
    return text


def _without_secrets_of_addresses(text: str) -> str:
    """Mask user and password before @, and a query after ?; after # nothing is secret.

    The steps look for single characters only: patterns for all at once take minutes for a text of a hundred kilobytes.
    """
    last_at = text.rfind("@")
    with_query = _address_with_query(text, last_at)
    if with_query is not None:  # an @ in the query: the password had a question mark
        host, _ = with_query
        text = f"{text[:host]}***"
    last_at = text.rfind("@")
    address = _ADDRESS.search(text)
    if address is not None and address.end() <= last_at:
        text = f"{text[: address.end()]}***{text[last_at:]}"
    with_query = _address_with_query(text, len(text))
    if with_query is not None:
        _, query = with_query
        text = f"{text[:query]}?***"
    return text


def _address_with_query(text: str, end: int) -> tuple[int, int] | None:
    """Return the first address whose query begins before `end`: where host and query begin; None if there is none.

    A query begins with the first ? or # behind the address, if that is a ?. So the text is cut at these marks.
    """
    part = 0  # where the part before the mark begins
    for mark in _QUERY_OR_FRAGMENT.finditer(text, 0, max(end, 0)):
        address = _ADDRESS.search(text, part, mark.start())
        if address is not None and mark[0] == "?":
            return address.end(), mark.start()
        part = mark.end()
    return None
