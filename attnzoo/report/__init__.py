"""Tables, plots and pages from run records. Neither torch nor Lightning is imported here."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "find_records": "records",
    "summarise": "rows",
    "print_table": "table",
    "write_csv": "csv",
    "write_report": "html",
    "write_bench_report": "bench_html",
    "log_summary": "wandb_summary",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.report.{_HOME[name]}"), name)
