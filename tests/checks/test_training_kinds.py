"""Optimizers and schedules are held to their properties: the package's own pass, and each planted fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnzoo
from attnzoo.checks.kinds import check_component
from attnzoo.components import get
from attnzoo.from_files import module_of

PLAIN = Path(__file__).parents[1] / "components" / "plain.py"


@pytest.mark.parametrize("what", ["optimizer:muon", "optimizer:adamw", "schedule:wsd", "schedule:cosine"])
def test_the_packages_own_pass(what: str) -> None:
    report = check_component(get(*what.split(":")), {})
    assert not report.failures, report


@pytest.mark.parametrize("name", ["Lion", "Flat"])
def test_those_of_a_file_pass(name: str) -> None:
    report = check_component(getattr(module_of(PLAIN), name), {})
    assert not report.failures, report


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Forgetful", ["resumes_bit_by_bit"]),
        ("DecaysAll", ["decays_matrices_alone"]),
        ("LeavesOut", None),  # it cannot be built at all, which the first property says of the parameters
        ("Counting", ["resumes"]),
        ("Doubles", ["factors_lie_within_bounds"]),
    ],
)
def test_planted_faults_are_found(name: str, found: list[str] | None) -> None:
    failed = {result.check: result for result in check_component(getattr(module_of(PLAIN), name), {}).failures}
    if found is None:
        assert "it leaves out embedding.weight" in failed["every_parameter_steps"].actual
    else:
        assert [*failed] == found


def test_without_the_restored_state_a_resume_is_seen_to_differ(monkeypatch) -> None:
    from attnzoo.optimizers.together import Together

    monkeypatch.setattr(Together, "load_state_dict", lambda self, state: None)
    failed = [result.check for result in check_component(get("optimizer", "adamw"), {}).failures]
    assert failed == ["resumes_bit_by_bit"]


def test_a_step_that_is_not_left_out_is_seen(monkeypatch) -> None:
    from attnzoo.optimizers.together import Together

    monkeypatch.setattr(Together, "skip_if", lambda self, found_inf: None)
    failed = [result.check for result in check_component(module_of(PLAIN).Lion, {}).failures]
    assert failed == ["leaves_out_a_step"]


def test_by_its_name() -> None:
    assert attnzoo.check("schedule:wsd", quick=True).passed


TEXTS = PLAIN.with_name("texts.py")


@pytest.mark.parametrize("what", ["corpus:moby_dick", "tokenizer:bytes", "tokenizer:bpe"])
def test_the_packages_own_texts_pass(what: str) -> None:
    report = check_component(get(*what.split(":")), {"bpe_vocab": 300} if what.endswith("bpe") else {})
    assert not report.failures, report


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Squares", []),
        ("Shifted", []),
        ("Shifting", ["reads_the_same"]),
        ("Latin", ["is_utf8", "is_split_first"]),
        ("Drops", ["is_lossless", "counts_bytes"]),
        ("Miscounts", ["counts_bytes"]),
        ("Forgets", ["comes_back_from_its_state"]),
    ],
)
def test_planted_faults_of_texts_are_found(name: str, found: list[str]) -> None:
    assert [each.check for each in check_component(getattr(module_of(TEXTS), name), {}).failures] == found


def test_a_tokenizer_that_sees_the_validation_split_is_seen(monkeypatch) -> None:
    from attnzoo.checks import corpora
    from attnzoo.data import corpus

    def leaking(text, origin, validation_fraction, fit):
        return corpus.make_splits(text, origin, validation_fraction, lambda train: fit(text))

    monkeypatch.setattr(corpora, "make_splits", leaking)
    failed = [each.check for each in check_component(module_of(TEXTS).Squares, {}).failures]
    assert failed == ["is_split_first"]


def test_a_corpus_that_lacks_its_options_is_not_checked() -> None:
    from attnzoo.errors import RequestError

    with pytest.raises(RequestError, match=r"data\.name=files needs data\.paths"):
        check_component(get("corpus", "files"), {})
