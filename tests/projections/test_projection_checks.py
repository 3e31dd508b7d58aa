"""Projections are components: built-in ones pass their checks, a planted fault is found, one of a file is trained and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnzoo
from attnzoo import cli, components
from attnzoo.errors import RequestError
from attnzoo.projections.mla import LatentKV
from attnzoo.projections.qkv import QKV
from attnzoo.training.config import from_dict, to_dict

TINY = ["experiment=tiny", "measure=none", "logger=disabled", "trainer.max_steps=2"]


@pytest.mark.parametrize("name", components.built_in("projection"))
def test_every_projection_passes(name: str) -> None:
    report = attnzoo.check(f"projection:{name}")
    assert report.passed, report
    assert report.counts()["skipped"] == 0


def test_a_wrong_latent_space_and_a_wrong_formula_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LatentKV.cached_heads

    def plain(self, parts, phases):  # queries that are not carried into the latent space
        q, k, v = right(self, parts, phases)
        return q.roll(1, -1), k, v

    monkeypatch.setattr(LatentKV, "cached_heads", plain)
    assert "decode_positions" in attnzoo.check("projection:mla").failed_checks()
    monkeypatch.setattr(QKV, "attention_cache_bytes", lambda *_: 8)
    assert attnzoo.check("projection:qkv").failed_checks() == ["cache_bytes_by_formula"]


FILE = '''
from dataclasses import dataclass
from attnzoo import Options, RequestError
from attnzoo.projections.qkv import QKV

@dataclass(frozen=True)
class ScaledOptions(Options):
    """factor: of the values."""
    factor: float = 2.0

    def __post_init__(self):
        if self.factor <= 0:
            raise RequestError(f"factor={self.factor}: must be more than 0")

class Scaled(QKV):
    """Values times a factor."""
    source, Options = "here", ScaledOptions

    def heads(self, parts, phases):
        q, k, v = super().heads(parts, phases)
        return q, k, v * self.options.factor
'''


@pytest.mark.usefixtures("files_forgotten")
def test_one_of_a_file_is_checked_trained_kept_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    spec = f"{tmp_path / 'mine.py'}:Scaled"
    assert cli.main(["check", spec, f"{spec}.factor=3.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["subject"] == "projection:Scaled"
    run = tmp_path / "run"
    cfg = attnzoo.compose(
        "train", [*TINY, f"model.projection={spec}", "model.projection_options.factor=3.0", f"run_dir={run}"]
    )
    assert (cfg.model.projection, cfg.model.projection_options) == ("Scaled", {"factor": 3.0})
    assert list(cfg.code) == ["projection:Scaled"]
    assert from_dict(to_dict(cfg)) == cfg
    assert attnzoo.train(cfg).status == "ok"
    assert attnzoo.load(run).layers[0].attention.projection.options.factor == 3.0
    for wrong, said in (
        ("factor=0", r"model\.projection_options\.factor=0\.0: must be"),
        ("facto=1", "did you mean 'factor'"),
    ):
        with pytest.raises(RequestError, match=said):
            attnzoo.compose("train", [*TINY, f"model.projection={spec}", f"model.projection_options.{wrong}"])


def test_a_wrong_name_is_one_line() -> None:
    with pytest.raises(RequestError, match=r"model\.projection=mlaa: did you mean mla\? valid: mla, qkv"):
        attnzoo.compose("train", ["model.projection=mlaa"])
    with pytest.raises(RequestError, match="does not say of which they are"):
        attnzoo.compose("train", ["model.projection_options.factor=3.0"])
