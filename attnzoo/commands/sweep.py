"""Train every combination of the swept values on the same footing, each in a process of its own, and measure them in turns.

  attnzoo sweep attention=sdpa,gla model.n_layers=2,4 seed=0,1 run_dir=runs/x
  attnzoo sweep trainer.muon_lr=0.01,0.02 seed=range(3) jobs=2

Rows differ in the swept values, seeds are gathered; ratios refer to the first combination. Started again, it keeps what has
finished and goes on; more values of the same keys may join. Refused cells keep their row, with the reasons.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from attnzoo.commands import add_overrides, failed
from attnzoo.comparison import NEEDED
from attnzoo.comparison.sweep import plan_sweep
from attnzoo.processes import preloading
from attnzoo.training.config import to_yaml


def add_arguments(parser: ArgumentParser) -> None:
    add_overrides(parser)


def run(arguments: Namespace) -> int:
    started = time.monotonic()
    if arguments.cfg is not None:
        plan = plan_sweep(arguments.overrides, arguments.config_dir)
        print("---\n".join(to_yaml(cell.cfg) for cell in plan.cells), end="")
        return 0
    with preloading(NEEDED):
        plan = plan_sweep(arguments.overrides, arguments.config_dir)
        from attnzoo.comparison.run import carry_out
        from attnzoo.report import find_records, print_table

        records = carry_out(plan, started=started, debug=arguments.debug)
    print_table(find_records(plan.folder).records)  # as the page has them
    print(f"report: {plan.folder}/report.html")
    return int(any(failed(record) for record in records))
