"""Backends of another package: right ones that look like none of ours raise no alarm, and each one's wrong twin does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).parent / "plugin_unusual"
sys.path.insert(0, str(PACKAGE))

from unusual import odd, plain, stateful, wrong  # noqa: E402

from attnzoo import Attention, check, leak_test  # noqa: E402
from attnzoo.measure.bench_operator import _work  # noqa: E402
from attnzoo.measure.bench_row import Setting  # noqa: E402
from attnzoo.model.build import assemble  # noqa: E402
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig  # noqa: E402


def classes(*modules) -> list[type[Attention]]:
    found = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return [c for c in found if issubclass(c, Attention)]


RIGHT, WRONG = classes(plain, stateful, odd), classes(wrong)


@pytest.mark.parametrize("right", RIGHT, ids=lambda c: c.__name__)
def test_a_right_backend_raises_no_alarm(right, request):
    report = check(right, quick=not request.config.getoption("--slow"))
    assert report.passed, str(report)


@pytest.mark.parametrize("twin", WRONG, ids=lambda c: c.__name__)
def test_its_wrong_twin_turns_red_where_it_should(twin):
    report = check(twin, only=[twin.caught_by])
    assert report.failed_checks() == [twin.caught_by], f"{twin.__name__} ({twin.__doc__}) went unseen: {report}"
    said = str(report)
    for part in ("  on  ", "  expected  ", "  actual  ", f"docs/checks.md#{twin.caught_by.replace('_', '-')}"):
        assert part in said


def test_each_has_a_twin():
    assert [twin.__mro__[1] for twin in WRONG] == RIGHT


def test_they_are_found_by_entry_point(tmp_path):
    (tmp_path / "unusual").symlink_to(PACKAGE / "unusual")
    info = tmp_path / "unusual-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unusual\nVersion: 1.0\n")
    named = (PACKAGE / "pyproject.toml").read_text().split("[project.entry-points.")[1]
    (info / "entry_points.txt").write_text("[" + named.replace('"', ""))
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(PACKAGE.parents[1])!r}]; "
        "from attnzoo.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["check", "own_ring", "unusual.wrong:PaddingBySlot", "--only", "decoding"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "own_ring on cpu: passed" in done.stdout
    assert "FAILED decoding" in done.stdout


@pytest.mark.parametrize("right", classes(odd), ids=lambda c: c.__name__)
def test_a_language_model_of_it_passes_and_is_benched(right):
    name = f"{right.__module__}:{right.__name__}"
    model = assemble(
        ModelConfig(n_layers=1, d_model=16, n_heads=2), AttentionConfig("exact", {}), PositionsConfig(), 19, 0
    )
    for block in model.blocks:
        block.attention.attention = right(n_heads=2, head_dim=8)
    report = leak_test(model, vocab_size=19, n_tokens=20)
    assert report.passed, (name, str(report))
    assert not report.failed
    attn, setting = right(n_heads=2, head_dim=8), Setting(1, 2, None, 8, torch.float32, "cpu", 1, 1, 0)
    work = _work(attn, lambda q, k, v: attn(q, k, v), "forward+backward", setting, 6, lambda: attn.kernel)
    work.contestant.run()
    assert attn.kernel == work.kernel() != "not run yet"


def test_heads_that_mix_undeclared_are_told_how_to_declare_it():
    class Undeclared(odd.TalkingHeads):
        capabilities = replace(odd.TalkingHeads.capabilities, heads_apart=True)

    report = check(Undeclared, only=["head_groups"])
    assert report.failed_checks() == ["head_groups"]
    assert "heads_apart=False" in str(report)
