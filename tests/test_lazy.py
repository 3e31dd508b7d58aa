"""Imports at first use, and without garbage collection."""

import gc

import pytest

from attnzoo.lazy import uncollected


@pytest.fixture(autouse=True)
def as_before():
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("before", [True, False])
def test_nothing_is_collected_within_and_all_is_as_before_afterwards(before):
    (gc.enable if before else gc.disable)()
    with uncollected(), uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() is before


def test_an_error_turns_collection_on_again():
    gc.enable()
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
