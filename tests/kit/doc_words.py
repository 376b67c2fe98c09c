"""Words of the documentation.

A word is a token with a letter or a digit, outside fenced code. Tables count, except in the README, whose limit is on
prose.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MAX_WORDS = 17_000  # words of docs/
MAX_README_WORDS = 900
MAX_PAGES = 18
MAX_PARAGRAPH_WORDS = 100

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HTML = re.compile(r"<!--.*?-->|<[^>\n]*>", re.DOTALL)


def without_code(text: str) -> str:
    return _FENCED.sub("", text)


def without_tables(text: str) -> str:
    return re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)


def count_words(text: str) -> int:
    """Return the number of tokens with a letter or a digit.

    >>> count_words("| a | 2 | -> |")
    2
    """
    return sum(re.search(r"\w", token) is not None for token in text.split())


def words_of_page(path: Path) -> int:
    return count_words(without_code(path.read_text("utf-8")))


def readme_words(path: Path) -> int:
    """Return the words of prose: no code, tables, HTML tags or addresses of links."""
    text = without_tables(without_code(path.read_text("utf-8")))
    text = re.sub(r"\]\([^)]*\)", "]", _HTML.sub("", text))
    return count_words(text)


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs and list items of a page, without code, tables and headings."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", without_tables(without_code(text)))
    return [block.strip() for block in blocks if block.strip() and not block.lstrip().startswith("#")]


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))
