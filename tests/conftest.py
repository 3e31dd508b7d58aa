"""Shared by all tests: few threads and a known random state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also what takes minutes: compilation of every backend")


torch.set_num_threads(1)  # the workers of pytest -n share the cores
settings.register_profile("attnzoo", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("attnzoo")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """What a test does to Ctrl-C and SIGTERM is undone, or a later one would end the whole session."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield
    changed = [signal.Signals(signum).name for signum, handler in before.items() if signal.getsignal(signum) != handler]
    if threading.current_thread() is threading.main_thread():
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert not changed, f"this test leaves another handler of {', '.join(changed)} behind"


@pytest.fixture
def files_forgotten() -> Iterator[None]:
    """The names of components that a test takes from files are free after it."""
    yield
    from attnzoo import components

    for kind, classes in components._classes.items():
        for name in [name for name, cls in classes.items() if cls.__module__.startswith("attnzoo_file_")]:
            del classes[name], components._origin[kind, name]
