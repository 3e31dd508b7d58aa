"""Shared by all tests: few threads and a known random state."""

from __future__ import annotations

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
