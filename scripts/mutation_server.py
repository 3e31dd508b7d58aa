"""Runs tests in a fresh fork for each mutant, so that torch is imported once and not once a mutant.

    serve ARGUMENTS   wait at the socket $MUTATION_SOCKET; the arguments go to pytest
    ask               have the tests run and exit as pytest did (0: the mutant survived)
    score SESSION     killed / total of a cosmic-ray session, then the survivors as diffs

Examples are derandomised, not stored and not shrunk: a result does not depend on the mutants before it.
"""

import contextlib
import os
import signal
import socket
import sqlite3
import sys

SECONDS = 120
"""Tests that run longer are ended, and the mutant counts as killed."""
NONE = 5
"""pytest's exit status where no test was chosen."""
PRELOADED = (
    "_hypothesis_pytestplugin", "hypothesis.strategies", "pytest", "torch", "xformers.ops.fmha.attn_bias", "lightning",
    "omegaconf", "hydra", "rich.console", "jinja2",
)  # fmt: skip
"""Imported once, before the forks; what is not installed is left out."""


def run_tests(arguments: list[str]) -> int:
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=25,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    plugins = ["-p", "no:cacheprovider", "-p", "no:logging", "-p", "_hypothesis_pytestplugin"]
    options = ["-x", "-q", "--assert=plain", *plugins, "--hypothesis-profile=mutation"]
    codes = []
    for part in ("not hypothesis", "hypothesis"):  # the worked examples first: they take milliseconds
        codes.append(int(pytest.main([*arguments, *options, "-m", part])))
        if codes[-1] not in (0, NONE):
            return codes[-1]
    return min(codes)


def serve(arguments: list[str]) -> None:
    import gc
    import importlib

    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    assert "attnzoo" not in sys.modules, "each fork must import the mutated file itself"
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ["MUTATION_SOCKET"])
    listener.listen()
    while True:
        caller, _ = listener.accept()
        child = os.fork()
        if child == 0:
            listener.close()
            signal.alarm(SECONDS)
            os._exit(run_tests(arguments))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        caller.sendall(bytes([status & 255]))
        caller.close()


def ask() -> int:
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(os.environ["MUTATION_SOCKET"])
    return caller.recv(1)[0]


def score(session: str) -> None:
    rows = sqlite3.connect(session).execute(
        "SELECT module_path, test_outcome, diff FROM work_items JOIN mutation_specs USING (job_id)"
        " LEFT JOIN work_results USING (job_id) WHERE worker_outcome IS NOT 'SKIPPED' ORDER BY 1, start_pos_row"
    )
    rows = list(rows)
    for path in sorted({row[0] for row in rows}):
        outcomes = [row[1] for row in rows if row[0] == path]
        print(f"{path}: {outcomes.count('KILLED')} of {len(outcomes)} killed, {outcomes.count('SURVIVED')} survived")
    for path, outcome, diff in rows:
        if outcome != "KILLED":
            lines = [line for line in (diff or "").splitlines()[3:] if line[:1] in "+-@"]
            print("\n".join([f"\n{path}: {outcome}", *lines]))


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    sys.exit({"serve": serve, "ask": lambda _: ask(), "score": lambda rest: score(*rest)}[verb](rest))
