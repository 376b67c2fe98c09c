"""Names of built-in methods by their role in the tests, so that only this file changes when a method is renamed."""

import re

ZERO_SHOT, TPT, CTPT, OTPT = "zero_shot", "tpt", "ctpt", "otpt"
OTPT_SQUARED = "otpt_squared"
# variants, by the method that they extend
SAM = {TPT: "tpt_sam", CTPT: "ctpt_sam", OTPT: "otpt_sam"}
ASAM = {TPT: "tpt_asam", CTPT: "ctpt_asam", OTPT: "otpt_asam"}
DYNAPROMPT = {TPT: "dynaprompt", CTPT: "dynaprompt_ctpt", OTPT: "dynaprompt_otpt"}
# two steps: on the entropy twice, on the entropy and then the penalty, or on the penalty and then the entropy
ENT_ENT = "tpt_ent_ent"
ENT_REG = {CTPT: "ctpt_ent_reg", OTPT: "otpt_ent_reg"}
REG_ENT = {CTPT: "ctpt_reg_ent", OTPT: "otpt_reg_ent"}
NAMES = {"zero_shot": ZERO_SHOT, "tpt": TPT, "ctpt": CTPT, "otpt": OTPT}  # by the word that texts of the tests use
ROLES = {name: role for role, name in NAMES.items()}


def named(text: str) -> str:
    """Return a text with each role replaced by the name in the catalogue."""
    return re.sub(rf"\b({'|'.join(NAMES)})\b", lambda role: NAMES[role[0]], text)
