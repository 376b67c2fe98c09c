"""Pages: the templates in `assets` make one file each, which loads nothing from anywhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fpp_sweep.report.document import Block
from fpp_sweep.report.table import group_spans
from fpp_sweep.spec.files import written_whole

GZIP_LEVEL = 4  # level 6 takes twice as long for pages that are 7 % smaller
ASSETS = Path(__file__).with_name("assets")


def write_page(path: Path, template: str, **context: Any) -> None:
    """Write the page that a template makes of its context."""
    # half of a character, as in a path that is not UTF-8, is written as `\udcff`
    with written_whole(path) as partial, partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(_environment().get_template(template).generate(context))


def blocks_to_html(blocks: Sequence[Block]) -> str:
    """Return blocks as a part of a page, such as the output of a notebook's cell.

    >>> from fpp_sweep.report.document import Text
    >>> print(blocks_to_html([Text("a < b")]))
    <p>a &lt; b</p>
    """
    macros: Any = _environment().get_template("blocks.html.j2").module
    return str(macros.blocks(blocks)).strip()


def render(template: str, **context: Any) -> str:
    """Return a part of a page."""
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "asset": _asset,
        "assets_digest": assets_digest,
        "group_spans": group_spans,
        "pack": pack,
        "plotly": _packed_plotly,
    }
    return environment


@cache
def assets_digest() -> str:
    """Return the digest of templates, stylesheet and scripts, which each page carries."""
    digest = hashlib.sha256()
    for file in sorted(ASSETS.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _asset(name: str) -> Markup:
    return Markup((ASSETS / name).read_text(encoding="utf-8"))


def pack(data: Any) -> str:
    """Return data as compressed text, which page.js unpacks and which cannot end its element.

    >>> pack({}) == pack({})
    True
    """
    return _packed(json.dumps(data, allow_nan=False, separators=(",", ":")))


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), GZIP_LEVEL, mtime=0)).decode()


@cache
def _packed_plotly() -> str:
    """Return plotly's script, 4.8 MB, as 2 MB of text."""
    return _packed(plotly_script())


def plotly_script() -> str:
    """Return what `plotly.offline.get_plotlyjs` returns, without the time to import plotly."""
    plotly = importlib.util.find_spec("plotly")
    assert plotly is not None  # a requirement of this package
    assert plotly.origin is not None
    return (Path(plotly.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
