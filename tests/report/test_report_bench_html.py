"""The page of `attnzoo bench`."""

import pytest

from attnzoo.report import write_bench_report


@pytest.fixture
def bench():
    shape = {"B": 1, "H": 4, "G": 4, "D": 64, "dtype": "float32"}
    rows = []
    for level, op in (("operator", "forward+backward"), ("model", "train_step")):
        for name, growth in (("sdpa", 3.7), ("linear", 2.0), ("exact<i>", 4.0)):
            for k, length in enumerate((1024, 2048, 4096)):
                ms = 2.0 * growth**k
                rows.append({
                    "backend": name, "level": level, "op": op, "T": length, **shape, "kernel": "torch", "status": "ok",
                    "timing": {"median": ms, "low": 0.97 * ms, "high": 1.04 * ms, "rounds": 11}, "reasons": [],
                    "flops": int(1e9 * growth**k), "peak_memory_bytes": int(1e7 * growth**k),
                })  # fmt: skip
        rows[-1]["timing"]["ratio"] = {"to": "sdpa", "median": 1.25, "low": 1.21, "high": 1.29}
    rows[-1].update(status="oom", timing=None, flops=None, peak_memory_bytes=None, reasons=["<b>needs 4 GiB</b>"])
    growth = [{"backend": "sdpa", "level": "operator", "op": "forward+backward", **shape, "quantity": "time", "exponent": 1.93,
               "low": 1.9, "high": 1.97, "declared": 2.0, "lengths": [1024, 2048, 4096], "verdict": "as declared"}]  # fmt: skip
    machine = {"cpu": "Example CPU", "threads": 2, "matmul_flops_per_s": 8.1e10, "copy_bytes_per_s_bfloat16": 1.9e10}
    return {"rows": rows, "growth": growth, "machine": machine}


def test_the_page(bench, tmp_path, parse):
    path = write_bench_report(bench, tmp_path / "bench.html")
    found = parse(path.read_text(encoding="utf-8"))
    assert sum(tag == "svg" and attrs.get("class") == "chart" for tag, attrs in found.tags) == 4
    for word in (
        "Cost over length, 3 backends",
        "Example CPU",
        "exact<i>",
        "<b>needs 4 GiB</b>",
        "T^1.93",
        "as declared",
        "1.25",
        "[1.21, 1.29]",
        "81 GFLOP/s",
        "19 GB/s",
        "operator: forward+backward, B 1, H 4, D 64, float32",
        "27.4",
    ):
        assert word in found.text, word
    assert not any(tag in ("b", "i") for tag, _ in found.tags)
    assert any(row[:3] == ["exact<i>", "4096", "–"] for row in found.rows)


def test_nothing_measured_is_still_a_page(tmp_path):
    path = write_bench_report({"rows": [], "growth": [], "machine": {}}, tmp_path / "bench.html")
    assert "attnzoo bench" in path.read_text()
