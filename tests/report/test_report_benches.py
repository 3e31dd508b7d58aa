"""Benchmarks that lie in a folder as JSON."""

import json

import pytest

from attnzoo.errors import RequestError
from attnzoo.report.benches import find_benches, show_benches

ROW = {
    "backend": "a",
    "level": "operator",
    "op": "forward",
    "T": 8,
    "D": 4,
    "dtype": "float32",
    "status": "ok",
    "kernel": "k",
}
CHECK = {"subject": "a", "dtypes": ["float32"], "passed": True, "refused": [], "tests": []}


def test_a_folder_of_benchmarks_is_shown_in_order_of_name(tmp_path, capsys):
    for name, held in (("b", {"rows": [ROW], "machine": {"device_name": "GPU", "torch": "2.13"}}), ("a", {"checks": [CHECK]}),
                       ("c", {"other": 1}), ("d", [1])):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(held))
    found = find_benches(tmp_path)
    assert [path.name for path in found] == ["a.json", "b.json"]
    assert show_benches(found) == [tmp_path / "b.html"]
    assert (tmp_path / "b.html").is_file()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["a: ", "a, float32: passed", "b: GPU, 2.13"]
    with pytest.raises(RequestError, match="holds no benchmark"):
        find_benches(tmp_path / "c.json")
    assert list(find_benches(tmp_path / "a.json")) == [tmp_path / "a.json"]
