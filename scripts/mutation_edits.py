"""One-line edits of the kind people make by mistake, one at a time, each under the tests: what of them goes unseen.

    python scripts/mutation_edits.py FILE_OR_FOLDER [--sample N] [--only TEXT] [--list]

Run by ``scripts/mutation.sh FOLDER TESTS`` in a throwaway clone beside `mutation_server.py`, which runs the tests in a fork.
Beyond operators and constants it swaps min and max, any and all, low and high, the two sides of a conditional, two arguments;
drops keyword arguments, entries of a dict, conditions of a comprehension and calls made for their effect; and misspells keys.
Annotations, docstrings and zip's ``strict`` are left alone.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARE = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",),
            "in": ("not in",), "not in": ("in",), "is": ("is not",), "is not": ("is",)}  # fmt: skip
_BINARY = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "/",
    "%": "*",
    "**": "*",
    "|": "&",
    "&": "|",
    "<<": ">>",
    "@": "*",
}
_TWINS = [("min", "max"), ("any", "all"), ("low", "high"), ("start", "end"), ("first", "last"), ("mean", "median"),
          ("x", "y"), ("rows", "columns"), ("sum", "len"), ("floor", "ceil")]  # fmt: skip
TWIN = {a: b for one, other in _TWINS for a, b in ((one, other), (other, one))} | {"sorted": "list", "rglob": "glob"}
_KEY = re.compile(r"[A-Za-z_][\w./-]*")


@dataclass(frozen=True)
class Edit:
    """Bytes ``start`` … ``end`` of a file become ``new``."""

    start: int
    end: int
    new: str


def edits(source: bytes) -> list[Edit]:
    """Every edit of a module that still compiles and is another program."""
    tree = ast.parse(source)
    found = {edit for node in _alive(tree) for edit in _Edits(source).of(node)}
    same = ast.dump(tree)
    return sorted((edit for edit in found if _another(source, edit, same)), key=lambda e: (e.start, e.end, e.new))


def applied(source: bytes, edit: Edit) -> bytes:
    return source[: edit.start] + edit.new.encode() + source[edit.end :]


def _another(source: bytes, edit: Edit, same: str) -> bool:
    try:
        return ast.dump(ast.parse(applied(source, edit))) != same
    except SyntaxError:
        return False


def _alive(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: neither annotations, nor docstrings, nor imports for a type checker."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            children = value if isinstance(value, list) else [value]
            waiting += [child for child in children if isinstance(child, ast.AST) and not _words(child)]


def _words(node: ast.AST) -> bool:
    """A docstring or an import."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, (ast.Import, ast.ImportFrom))


class _Edits:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def of(self, node: ast.AST) -> Iterator[Edit]:
        if maker := getattr(self, f"_{type(node).__name__}", None):
            yield from maker(node)

    def _from(self, node) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def _to(self, node) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node) -> str:
        return self.source[self._from(node) : self._to(node)].decode()

    def _replaced(self, node, new: str) -> Edit:
        return Edit(self._from(node), self._to(node), new)

    def _swapped(self, one, other) -> Iterator[Edit]:
        middle = self.source[self._to(one) : self._from(other)].decode()
        yield Edit(self._from(one), self._to(other), self._text(other) + middle + self._text(one))

    def _between(self, left, right, symbol: str, new: str) -> Iterator[Edit]:
        start, end = self._to(left), self._from(right)
        pattern = (
            rb"\b" + re.escape(symbol.encode()).replace(rb"\ ", rb"\s+") + rb"\b"
            if symbol[0].isalpha()
            else re.escape(symbol.encode())
        )
        if match := re.search(pattern, self.source[start:end]):
            yield Edit(start + match.start(), start + match.end(), new)

    def _Compare(self, node: ast.Compare) -> Iterator[Edit]:
        symbols = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
                   ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}  # fmt: skip
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            symbol = symbols[type(op)]
            for new in _COMPARE[symbol]:
                yield from self._between(left, right, symbol, new)

    def _BinOp(self, node: ast.BinOp) -> Iterator[Edit]:
        symbols = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
                   ast.BitOr: "|", ast.BitAnd: "&", ast.LShift: "<<", ast.MatMult: "@"}  # fmt: skip
        if (symbol := symbols.get(type(node.op))) and not any(
            isinstance(side, ast.JoinedStr) for side in (node.left, node.right)
        ):
            yield from self._between(node.left, node.right, symbol, _BINARY[symbol])

    def _AugAssign(self, node: ast.AugAssign) -> Iterator[Edit]:
        for symbol, new in (("+=", "-="), ("-=", "+="), ("*=", "/="), ("/=", "*="), ("|=", "="), ("+=", "=")):
            yield from self._between(node.target, node.value, symbol, new)

    def _BoolOp(self, node: ast.BoolOp) -> Iterator[Edit]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from self._between(left, right, old, new)

    def _UnaryOp(self, node: ast.UnaryOp) -> Iterator[Edit]:
        if isinstance(node.op, (ast.Not, ast.USub)):
            yield self._replaced(node, f"({self._text(node.operand)})")

    def _Constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool) and not self.source[: self._from(node)].endswith(b"strict="):
            yield self._replaced(node, str(not value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield self._replaced(node, repr(value + 1))
            if value == 0:
                yield self._replaced(node, "-1")
        elif isinstance(value, str) and _KEY.fullmatch(value) and self._text(node)[:1] in "\"'":
            yield self._replaced(node, repr(TWIN.get(value, f"{value}_")))

    def _Name(self, node: ast.Name) -> Iterator[Edit]:
        if isinstance(node.ctx, ast.Load) and node.id in TWIN:
            yield self._replaced(node, TWIN[node.id])

    def _Attribute(self, node: ast.Attribute) -> Iterator[Edit]:
        if isinstance(node.ctx, ast.Load) and node.attr in TWIN:
            yield Edit(self._to(node) - len(node.attr), self._to(node), TWIN[node.attr])

    def _IfExp(self, node: ast.IfExp) -> Iterator[Edit]:
        yield self._replaced(node.test, f"(not ({self._text(node.test)}))")

    def _If(self, node: ast.If | ast.While) -> Iterator[Edit]:
        yield self._replaced(node.test, f"(not ({self._text(node.test)}))")

    _While = _If

    def _comprehension(self, node: ast.comprehension) -> Iterator[Edit]:
        for condition in node.ifs:
            yield self._replaced(condition, "True")

    def _Call(self, node: ast.Call) -> Iterator[Edit]:
        plain = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript)
        for one, other in zip(node.args, node.args[1:], strict=False):
            if isinstance(one, plain) and isinstance(other, plain):
                yield from self._swapped(one, other)
        for keyword in node.keywords:
            if keyword.arg and keyword.arg != "strict":
                yield self._without(self._from(keyword), self._to(keyword))

    def _Dict(self, node: ast.Dict) -> Iterator[Edit]:
        for key, value in zip(node.keys, node.values, strict=True):
            start = self.source.rindex(b"**", 0, self._from(value)) if key is None else self._from(key)
            yield self._without(start, self._to(value))

    def _without(self, start: int, end: int) -> Edit:
        """An item of a list of items, with one comma."""
        if after := re.match(rb"\s*,\s*", self.source[end:]):
            return Edit(start, end + after.end(), "")
        if before := re.search(rb",\s*$", self.source[:start]):
            return Edit(before.start(), end, "")
        return Edit(start, end, "")

    def _Tuple(self, node: ast.Tuple) -> Iterator[Edit]:
        if isinstance(node.ctx, ast.Load) and len(node.elts) == 2:
            yield from self._swapped(*node.elts)

    def _Expr(self, node: ast.Expr) -> Iterator[Edit]:
        if isinstance(node.value, (ast.Call, ast.Yield, ast.YieldFrom)):
            yield self._replaced(node, "pass")

    def _Continue(self, node: ast.stmt) -> Iterator[Edit]:
        yield self._replaced(node, "pass")

    _Break = _Raise = _Continue


def _shown(path: Path, source: bytes, edit: Edit) -> str:
    """The lines that change, before and after."""
    start, end = source.rfind(b"\n", 0, edit.start) + 1, source.find(b"\n", edit.end)
    number = source[:start].count(b"\n") + 1
    before, after = (
        source[start:end],
        applied(source, edit)[start : end + len(edit.new.encode()) - (edit.end - edit.start)],
    )
    lines = [f"{path}:{number}", *(f"- {line}" for line in before.decode().splitlines())]
    return "\n".join([*lines, *(f"+ {line}" for line in after.decode().splitlines())])


def main() -> int:
    from mutation_server import ask

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--sample", type=int, default=0, help="edits a file, drawn with a fixed seed; 0: all")
    parser.add_argument("--only", default="", help="files whose path holds this text")
    parser.add_argument("--list", action="store_true", help="show the edits, run nothing")
    given = parser.parse_args()
    paths = [given.place] if given.place.is_file() else sorted(given.place.rglob("*.py"))
    totals = [0, 0]
    for path in (path for path in paths if given.only in str(path)):
        source = path.read_bytes()
        chosen = edits(source)
        if given.sample and len(chosen) > given.sample:
            chosen = sorted(random.Random(str(path)).sample(chosen, given.sample), key=lambda e: e.start)
        alive = []
        for edit in chosen:
            if given.list:
                print(_shown(path, source, edit))
                continue
            try:
                path.write_bytes(applied(source, edit))
                if ask() == 0:
                    alive.append(edit)
                    print(f"\nUNSEEN {_shown(path, source, edit)}", flush=True)
            finally:
                path.write_bytes(source)
        print(f"{path}: {len(chosen) - len(alive)} of {len(chosen)} seen", flush=True)
        totals = [totals[0] + len(chosen) - len(alive), totals[1] + len(chosen)]
    print(f"{given.place}: {totals[0]} of {totals[1]} seen ({100 * totals[0] / max(totals[1], 1):.1f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
