"""Train one model on text, score it, test it for leaks, measure it; everything goes into one run folder.

attnzoo train attention=linear model.n_layers=4 seed=1
attnzoo train experiment=tiny --cfg job
attnzoo train -m attention=exact,linear seed=0,1      the same as attnzoo sweep
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from attnzoo.commands import EXIT, add_overrides, composed, failed


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
    print_table([record])
    print(f"run folder: {cfg.run_dir}")
    return EXIT.get(record["status"], 1) or int(failed(record))
