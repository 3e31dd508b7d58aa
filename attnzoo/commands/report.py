"""Write report.html and summary.csv from the records in a folder, and print the table; or show benchmarks kept as JSON.

attnzoo report runs/compare
attnzoo report experiments/gpu
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from attnzoo.commands import flags
from attnzoo.terminal import printable


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=flags.place,
        metavar="FOLDER",
        help="a comparison's folder, a run folder, a folder of run folders, or benchmarks: their folder or one JSON file",
    )


def run(arguments: Namespace) -> int:
    from attnzoo.report import find_records, print_table, write_report
    from attnzoo.report.benches import find_benches, show_benches

    place = Path(arguments.folder)
    benches = find_benches(place) if place.is_dir() or place.suffix == ".json" else {}
    if benches:
        for page in show_benches(benches):
            print(printable(f"report: {page}"))
        return 0
    path = write_report(place)
    print_table(find_records(place).records)
    print(printable(f"report: {path}"))
    return 0
