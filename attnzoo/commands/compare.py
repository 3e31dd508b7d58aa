"""Train several backends on the same data for the same tokens, each in a process of its own, and measure them in turns.

  attnzoo compare backends=[exact,sdpa,linear] seeds=[0,1] experiment=demo
  attnzoo compare backends=[sliding_window,linear] options.sliding_window.window=32

Started again, it keeps what has finished and goes on. Refused cells keep their row, with the reasons.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import cast

from attnzoo.commands import add_overrides, composed, failed
from attnzoo.comparison import NEEDED
from attnzoo.processes import preloading
from attnzoo.training.config import CompareConfig


def add_arguments(parser: ArgumentParser) -> None:
    add_overrides(parser)


def run(arguments: Namespace) -> int:
    started = time.monotonic()
    if arguments.cfg is not None:
        composed("compare", arguments)
        return 0
    with preloading(NEEDED):
        cfg = cast(CompareConfig, composed("compare", arguments))
        from attnzoo.comparison import compare
        from attnzoo.report import find_records, print_table

        records = compare(cfg, started=started, debug=arguments.debug)
    print_table(find_records(cfg.run_dir).records)  # as the page has them
    print(f"report: {cfg.run_dir}/report.html")
    return int(any(failed(record) for record in records))
