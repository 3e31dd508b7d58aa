"""Writes docs/record.schema.json from the declaration of the run record. `--check` only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "record.schema.json"


def page() -> str:
    from attnzoo.measure.schema import json_schema

    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    from attnzoo.files import write_text_atomic

    write_text_atomic(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
