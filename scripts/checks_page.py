"""Writes docs/checks.md from the docstrings of the suite: what each check demands. `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "checks.md"

HEAD = """# The conformance suite

Written by `scripts/checks_page.py`; do not edit. `attnzoo check NAME` runs these; those marked quick also run with `--quick` and
before any speed is shown. A check stops at its first failure and then looks for the smallest input that still fails. What a
backend does not declare must be refused, and counts as refused, not as passed.
"""


def page() -> str:
    import attnzoo.checks.suite as suite

    lines, group = [HEAD], ""
    for one in suite.all_checks():
        if one.group != group:
            group = one.group
            module = sys.modules[f"attnzoo.checks.{group}"]
            lines.append(f"## {group.capitalize()}\n\n{(module.__doc__ or '').strip()}\n")
        lines.append(f"### {one.name.replace('_', '-')}\n\n{one.about}{' (quick)' if one.quick else ''}\n")
    return "\n".join(lines)


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    from attnzoo.files import write_text_atomic

    write_text_atomic(PAGE, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
