"""The built-in methods by their part in the tests, whatever the catalogue calls them: there alone a row is renamed."""

import re

from fpp_sweep import catalogue

PLAIN, TPT, CTPT, OTPT, *_ = catalogue.BUILT_IN  # a new row comes after these
NAMES = {"zero_shot": PLAIN, "tpt": TPT, "ctpt": CTPT, "otpt": OTPT}  # by role: the words of the tests' texts
ROLES = {name: role for role, name in NAMES.items()}


def named(text: str) -> str:
    """A text with the catalogue's names in place of the roles."""
    return re.sub(rf"\b({'|'.join(NAMES)})\b", lambda role: NAMES[role[0]], text)
