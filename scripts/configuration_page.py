"""Writes docs/configuration.md from the declarations of the settings. `--check` only compares."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration keys

Written by `scripts/configuration_page.py`; do not edit. `attnzoo help KEY` prints one. Options of components (a backend's, a
metric's) stand below the settings, under the group in which they are given.
"""


def page() -> str:
    from attnzoo import components
    from attnzoo.components import KINDS
    from attnzoo.reference import component_options, settings

    lines = [HEAD]
    for group, keys in groupby(
        sorted(settings(), key=lambda key: ("." in key.name and key.name.rpartition(".")[0]) or ""),
        lambda key: key.name.rpartition(".")[0],
    ):
        lines += [f"## {group or 'At the top'}\n", "| key | takes | default | meaning |", "|---|---|---|---|"]
        for key in keys:
            said = [key.meaning.rstrip("."), *key.bounds]
            said += [f"of {' and '.join(key.commands)} alone"] if key.commands else []
            if key.choices and not any(key.choices == tuple(components.names(kind)) for kind in KINDS):
                said.append(f"valid: {', '.join(key.choices)}")
            lines.append(_row(key.name, key.takes, key.default, said))
        lines.append("")
    built_in = {kind: components.built_in(kind) for kind in KINDS}
    own = sorted(component_options(built_in), key=lambda key: (key.name.rpartition(".")[0], key.of, key.name))
    for group, keys in groupby(own, lambda key: key.name.rpartition(".")[0]):
        lines += [f"## Options in {group}\n", "| key | of | takes | default | meaning |", "|---|---|---|---|---|"]
        for key in keys:
            said = [key.meaning.rstrip("."), *([f"valid: {', '.join(key.choices)}"] if key.choices else [])]
            lines.append(_row(key.name, key.takes, key.default, said, key.of.partition(" ")[2]))
        lines.append("")
    return "\n".join(lines)


def _row(name: str, takes: str, default: str | None, said: list[str], of: str = "") -> str:
    shown = "–" if default is None else f"`{default}`"
    cells = [f"`{name}`", *([of] if of else []), takes, shown, "; ".join(filter(None, said)).replace("|", "\\|")]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    from attnzoo.files import write_text_atomic

    write_text_atomic(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
