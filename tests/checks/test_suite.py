"""The machinery of the suite: reports, shrinking, subjects of every kind, refusals counted and not passed."""

from __future__ import annotations

import json

import pytest
import torch

import attnzoo
from attnzoo import Attention, Capabilities, Mask
from attnzoo.checks import Subject, all_checks, check
from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.compare import Failed, InPrecision, expect_close
from attnzoo.checks.decoding import compositions
from attnzoo.checks.layout import poisoned_memory
from attnzoo.checks.report import FAILED, CheckReport, Result
from attnzoo.errors import RequestError


class Peeks(Attention):
    """Softmax attention that reads one future key from six tokens on."""

    source = "none"
    capabilities = Capabilities()

    def attend(self, q, k, v, mask, bias, x):
        visible = mask.dense(q.shape[2], k.shape[2], q.device).clone()
        if q.shape[2] == k.shape[2] > 5:
            visible[..., 2, 4] = True
        scores = (q * self.scale) @ self.repeat_kv(k).mT
        self.ran("test/peeks")
        return scores.masked_fill(~visible, float("-inf")).softmax(-1).nan_to_num(0) @ self.repeat_kv(v)


def test_a_failure_names_property_smallest_input_values_and_place():
    report = check(Peeks, only=["future_by_gradient"])
    assert not report.passed
    (failure,) = report.failures
    assert "H=1 G=1 Tq=6 Tk=6 D=1 " in failure.case
    assert failure.expected == "0 exactly"
    assert float(failure.actual) > 0
    assert failure.where.startswith("d out[row 2] / d ")
    assert failure.where.endswith("[position 4]")
    said = str(report)
    for part in ("FAILED future_by_gradient", "expected", "actual", "docs/checks.md#future-by-gradient"):
        assert part in said


def test_closeness_alone_would_not_say_that_it_leaks():
    assert check("exact", only=["future_by_gradient"]).passed


def test_report_as_plain_data_counts_everything():
    report = check("xformers", quick=True)
    assert report.refused
    assert not report.passed
    assert not report.failures
    counts = report.counts()
    assert counts["passed"] == counts["failed"] == 0
    assert counts["refused"] + counts["skipped"] == len(report.results)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["passed"] is False
    assert {t["name"] for t in data["tests"]} == {c.name for c in all_checks(quick=True)}
    assert all(t["reasons"] for t in data["tests"])


def test_skips_carry_a_reason():
    report = check("linear", only=["worked_numbers"])
    assert report.counts()["skipped"] == len(report.results)
    assert all(r.detail for r in report.results)


@pytest.mark.parametrize(
    "what",
    [
        "exact",
        attnzoo.build("sliding_window", n_heads=4, n_kv_heads=2, head_dim=4, window=3),
        lambda **sizes: attnzoo.registry.get("exact")(**sizes),
    ],
    ids=["name", "instance", "factory"],
)
def test_subjects_of_every_kind(what):
    assert check(what, only=["definition", "decoding"]).passed


def test_an_instance_is_checked_as_it_is():
    attn = attnzoo.build("exact", n_heads=2, head_dim=8)
    attn.attend = lambda q, k, v, *rest: v + 0 * q  # this very module is broken, not its class
    assert "definition" in check(attn, only=["definition"]).failed_checks()
    assert check(type(attn), only=["definition"]).passed


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: check("exat"), "did you mean 'exact'"),
        (lambda: check("linear", chunks=3), "chunk"),
        (lambda: check("exact", only=["definitoin"]), "did you mean 'definition'"),
        (lambda: check(3), "cannot check 3"),
    ],
)
def test_wrong_requests_are_answered_with_the_nearest_name(call, said):
    with pytest.raises(RequestError, match=said):
        call()


def test_small_options_cross_many_edges_and_own_ones_stay():
    subject = Subject.of("linear", chunk=64)
    assert (subject.small.chunk, subject.own.chunk, subject.edges) == (4, 64, (64,))


def test_masks_of_a_plan_exist_at_every_size():
    for padding in (None, "right", "left", "holes", "all"):
        for documents in (None, "runs", "mixed"):
            for batch, n in ((1, 1), (2, 3), (3, 9)):
                mask = MaskPlan(padding=padding, documents=documents).build(batch, n)
                mask.check_lengths(n, batch)


def test_smaller_cases_are_smaller():
    case = Case(
        heads=4, kv_heads=2, n_queries=9, n_keys=9, value_dim=3, mask=MaskPlan(window=2, padding="left"), bias=True
    )
    for other in case.smaller():
        assert other != case
        assert other.heads % other.kv_heads == 0
        assert 0 < other.n_queries <= 9


def test_compositions_are_all_splits():
    assert sorted(compositions(3)) == [(1, 1, 1), (1, 2), (2, 1), (3,)]
    assert len(set(compositions(6))) == 32


def test_in_precision_runs_float64_code_in_another_type():
    q = torch.randn(1, 2, 5, 4)
    attn = attnzoo.build("exact", n_heads=2, head_dim=4)
    with InPrecision(torch.float32):
        out = attn.reference(q, q, q)[0]
    assert out.dtype == torch.float32
    assert attn.reference(q, q, q)[0].dtype == torch.float64


def test_expect_close_is_two_sided():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    plain = exact.float()
    expect_close(exact.float(), exact, plain, "out")
    with pytest.raises(Failed):  # an error that plain arithmetic does not make is not forgiven, however small
        expect_close(exact.float() + 3e-6, exact, plain, "out")
    with pytest.raises(Failed):  # nor is a large one because plain arithmetic makes it too
        expect_close(exact.float() + 0.5, exact, plain + 0.5, "out")


def test_poisoned_memory_fills_and_restores():
    with poisoned_memory():
        assert torch.empty(64).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_every_check_says_what_it_demands():
    for one in all_checks():
        assert one.about.endswith("."), one.name
        assert len(one.about) < 150
    assert len({one.name for one in all_checks()}) == len(all_checks())


def test_mask_readout_reads_the_mask():
    attn, n = attnzoo.build("exact", n_heads=1, head_dim=2), 5
    zero = torch.zeros(1, 1, n, 2)
    out = attn(zero, zero, torch.eye(n)[None, None], Mask(window=2))
    assert torch.equal(out > 0, Mask(window=2).dense(n, n))


def test_the_page_of_checks_is_up_to_date():
    import subprocess
    import sys
    from pathlib import Path

    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, root / "scripts" / "checks_page.py", "--check"], check=False, cwd=root)
    assert run.returncode == 0, "run scripts/checks_page.py"


def test_costs_are_declared_for_the_options_and_the_device():
    assert Subject.of("block_sparse").can.time == 1.0
    assert Subject.of("block_sparse", layout="fixed").can.time == 2.0
    assert [attnzoo.registry.get("flex").declared(attnzoo.Options(), d).memory for d in ("cpu", "cuda")] == [2.0, 1.0]


def test_checks_run_side_by_side_keep_their_order(capsys, monkeypatch):
    from attnzoo.cli import main

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert main(["check", "sdpa", "exact", "--only", "state_growth", "--json"]) == 0
    assert [r["subject"] for r in json.loads(capsys.readouterr().out)] == ["sdpa", "exact"]


def test_an_error_of_the_subjects_own_code_is_shown_once():
    raised = [
        Result(name, "B=1", FAILED, actual="NameError: x", detail="raised in a.py:1 f") for name in ("a", "b", "b")
    ]
    wrong = [Result(name, "B=1", FAILED, actual="0.5", detail="error 0.5") for name in ("c", "d")]
    text = str(CheckReport("mine", "cpu", ("float32",), True, [*raised, *wrong]))
    assert text.count("NameError") == 1
    assert "FAILED in the same way: b\n" in text
    assert text.count("error 0.5") == 2
