"""What a test registers is gone after it."""

from __future__ import annotations

import pytest

from attnzoo import components


@pytest.fixture(autouse=True)
def registry_as_before():
    for kind in components.KINDS:
        components.load(kind)  # what is loaded meanwhile would not come again
    classes, origin = {kind: dict(known) for kind, known in components._classes.items()}, dict(components._origin)
    yield
    for kind, known in classes.items():
        components._classes[kind].clear()
        components._classes[kind].update(known)
    components._origin.clear()
    components._origin.update(origin)
