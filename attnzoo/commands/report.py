"""Write report.html and summary.csv from the records in a folder, and print the table.

attnzoo report runs/compare
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="a comparison's folder, a run folder, or a folder of run folders"
    )


def run(arguments: Namespace) -> int:
    from attnzoo.report import find_records, print_table, write_report

    path = write_report(arguments.folder)
    print_table(find_records(arguments.folder).records)
    print(f"report: {path}")
    return 0
