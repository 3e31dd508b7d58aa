"""Pages from templates: escaped, self-contained, and forbidden to reach for anything by their own policy."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attnzoo.report.groups import clean
from attnzoo.report.marks import swatch

_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """The page, every value escaped; SVG comes as `Markup` from our own writer, which escapes by itself."""
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "sort.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    page = _environment().get_template(template)
    return page.render(style=Markup(style), script=Markup(script), policy=policy, **values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    made.globals["swatch"] = lambda style: Markup(swatch(style))
    made.filters["svg"] = Markup
    return made
