"""Train one model on text, score it, test it for leaks, measure it; everything goes into one run folder.

attnzoo train attention=linear model.n_layers=4 seed=1
attnzoo train experiment=tiny --cfg job
attnzoo train trainer.max_steps=600                   trains a finished run of 300 steps on; trainer.init_from=RUN takes weights
attnzoo train -m attention=exact,linear seed=0,1      the same as attnzoo sweep

Started again, it keeps what is finished and goes on with what is not; trainer.restart=true starts over. Ctrl-C and SIGTERM leave
a checkpoint (exit status 130 and 143).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from attnzoo.commands import EXIT, add_overrides, composed, failed
from attnzoo.errors import shortened
from attnzoo.terminal import printable, say


def add_arguments(parser: ArgumentParser) -> None:
    add_overrides(parser)
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="every combination of KEY=A,B and KEY=range(…): attnzoo sweep"
    )


def run(arguments: Namespace) -> int:
    if arguments.multirun:
        from attnzoo.commands import sweep

        return sweep.run(arguments)
    cfg = composed("train", arguments)
    if cfg is None:
        return 0
    from attnzoo.report import print_table
    from attnzoo.training import train

    record = train(cfg)
    if error := record.get("error"):
        if arguments.debug:
            from attnzoo.training.log import LOG, last_traceback

            say(last_traceback(Path(cfg.run_dir).expanduser() / LOG))
        else:
            where = f"{error['type']} at {error['frame']}; the traceback is in {cfg.run_dir}/log.txt"
            say(where)
    print_table([record])
    for line in record.get("warnings", []):
        say(f"warning: {shortened(line)}")
    print(printable(f"run folder: {cfg.run_dir}"))
    return EXIT.get(record["status"], 1) or int(failed(record))
