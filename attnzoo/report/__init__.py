"""Tables, plots and pages from run records. Neither torch nor Lightning is imported here."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

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
__getattr__ = at_first_use(__name__, _HOME)
