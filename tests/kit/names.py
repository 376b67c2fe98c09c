"""Names of built-in methods by their role in the tests, so that only this file changes when a row is renamed."""

import re

from fpp_sweep.spec import catalogue

PLAIN, TPT, CTPT, OTPT, *OTHERS = catalogue.BUILT_IN  # a new row comes after these
SAM, ASAM = (dict(zip((TPT, CTPT, OTPT), names, strict=True)) for names in (OTHERS[:3], OTHERS[3:6]))
ENT_ENT, DYNAPROMPT = OTHERS[6], dict(zip((TPT, CTPT, OTPT), OTHERS[11:14], strict=True))
OTPT_SQUARED = OTHERS[14]
ENT_REG, REG_ENT = (dict(zip((CTPT, OTPT), OTHERS[first:11:2], strict=True)) for first in (7, 8))
NAMES = {"zero_shot": PLAIN, "tpt": TPT, "ctpt": CTPT, "otpt": OTPT}  # by role: the words of the tests' texts
ROLES = {name: role for role, name in NAMES.items()}


def named(text: str) -> str:
    """Return a text with each role replaced by the name in the catalogue."""
    return re.sub(rf"\b({'|'.join(NAMES)})\b", lambda role: NAMES[role[0]], text)
