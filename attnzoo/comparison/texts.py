"""The texts of a comparison's cells, told apart by content: what was trained on one is not ranked with another. No torch."""

from __future__ import annotations

from dataclasses import replace

from attnzoo.comparison.plan import TEXT, Cell, Plan, read_plan
from attnzoo.data.sources import text_name, text_sha256
from attnzoo.errors import RequestError
from attnzoo.tasks.build import reads_text
from attnzoo.training.kept import WAY_OUT, another, kept_sha256


def with_texts(plan: Plan) -> Plan:
    """The plan whose cells name their text by content, as it is read now; the process of each reads that or refuses.

    Raises:
        RequestError: a text cannot be read; or what was started in the folder is of another one: both SHA-256 are named.
    """
    texts: dict[str, str] = {}
    cells = [_with_text(cell, texts) for cell in plan.cells]
    found = [
        another(f"{cell.run}, {text_name(cell.cfg.data)}", there, cell.cfg.data.sha256)
        for cell in cells
        if cell.cfg.data.sha256
        and not cell.starts_over
        and (there := kept_sha256(cell.folder)) not in (None, cell.cfg.data.sha256)
    ]
    common = {**plan.common, TEXT: next(iter(texts.values()))} if len({*texts.values()}) == 1 else plan.common
    kept = TEXT in common and not all(cell.starts_over for cell in cells)
    if not found and kept and (there := _planned(plan)) not in (None, common[TEXT]):
        found = [another(f"the text of {text_name(cells[0].cfg.data)}", there, common[TEXT])]
    if found:
        raise RequestError(f"run_dir={plan.folder} holds a comparison on another text", [*found, WAY_OUT])
    return replace(plan, cells=cells, common=common)


def _with_text(cell: Cell, texts: dict[str, str]) -> Cell:
    """The cell with the SHA-256 of its text, each of which is read once."""
    data = cell.cfg.data
    if not reads_text(cell.cfg.task):
        return cell
    if repr(data) not in texts:
        texts[repr(data)] = text_sha256(data)
    return replace(cell, cfg=replace(cell.cfg, data=replace(data, sha256=texts[repr(data)])))


def _planned(plan: Plan) -> str | None:
    """The text that an earlier start said all its cells have."""
    return read_plan(plan.folder).get("common", {}).get(TEXT)
