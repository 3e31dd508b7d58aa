"""Sweeps: which cells there are, what is refused, and one real sweep whose rows are told apart by what was swept."""

from __future__ import annotations

import csv
import json

import pytest

from attnzoo.cli import main
from attnzoo.comparison import children as children_module
from attnzoo.comparison.rounds import all_rounds
from attnzoo.comparison.run import carry_out
from attnzoo.comparison.sweep import expand, plan_sweep
from attnzoo.errors import RequestError
from attnzoo.report import find_records, summarise

TINY = [
    "experiment=tiny",
    "trainer.precision=fp32",
    "measure.memory=false",
    "measure.lengths=[]",
    "logger=disabled",
    "trainer.max_steps=2",
]


def words(*overrides: str) -> list[list[str]]:
    return [job.overrides for job in expand(overrides)]


def test_the_product_of_swept_values():
    assert words("attention=exact,linear", "seed=range(2)", "model=tiny") == [
        ["attention=exact", "seed=0", "model=tiny"],
        ["attention=exact", "seed=1", "model=tiny"],
        ["attention=linear", "seed=0", "model=tiny"],
        ["attention=linear", "seed=1", "model=tiny"],
    ]
    assert ["positions=alibi"] in words("positions=glob(*)")
    assert words("seed=1,2", "trainer.betas=[0.9,0.95]")[0] == ["seed=1", "trainer.betas=[0.9,0.95]"]


def test_a_cell_has_one_name_in_whatever_order_it_was_asked_for():
    there, back = expand(["seed=0,1", "attention=exact,linear"]), expand(["attention=exact,linear", "seed=0,1"])
    assert {job.name for job in there} == {job.name for job in back}
    assert there[0].name == "attention=exact_seed=0"


def test_long_values_make_short_names_that_differ():
    first, second = expand([f"model.attention_pattern=[{'sdpa,' * 80}gla],[{'sdpa,' * 80}linear]"])
    assert len(first.name) < 200
    assert first.name != second.name


@pytest.mark.parametrize(
    ("overrides", "reasons"),
    [
        (["seed=0"], ["no key has several values"]),
        (["seed=0,0"], ["seed=0 is asked for more than once"]),
        (["trainer.muon_lr=interval(0,1)", "run_dir=a,b"], ["name the values", "run_dir is one for all cells"]),
        (["attention=spda,gla_", "seed=0,-1"], ["'sdpa'", "'gla'", "seed=-1"]),
    ],
)
def test_a_wrong_sweep_is_refused_with_every_reason(overrides, reasons):
    with pytest.raises(RequestError, match="cannot be started") as wrong:
        plan_sweep(overrides)
    assert all(any(reason in said for said in wrong.value.reasons) for reason in reasons)


def test_the_folder_does_not_depend_on_which_values():
    few, more = (plan_sweep([*TINY, f"seed={seeds}"]).folder for seeds in ("0,1", "0,1,2"))
    assert few == more
    assert few != plan_sweep([*TINY, "seed=0,1", "model.n_layers=1"]).folder


def test_cells_timed_in_another_way_do_not_take_turns():
    sets = all_rounds(plan_sweep([*TINY, "trainer.batch_size=1,2", "seed=0,1"]))
    assert [[cell.cfg.trainer.batch_size for cell in rounds.cells] for rounds in sets] == [[1, 1], [2, 2]]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over layers and seeds, from the command line, with a cell that is refused."""
    folder = tmp_path_factory.mktemp("swept") / "out"
    asked = [*TINY, "attention=sdpa,flex", "model.n_layers=1,2", "seed=0,1", "trainer.device=cpu", f"run_dir={folder}"]
    return folder, asked, main(["sweep", *asked])


def test_every_combination_has_a_folder_and_a_line(swept):
    folder, _, status = swept
    assert status == 0
    lines = list(csv.DictReader((folder / "summary.csv").open()))
    assert [(line["attention"], line["model.n_layers"], line["seed"], line["status"]) for line in lines] == [
        (attention, layers, seed, "ok" if attention == "sdpa" else "refused")
        for attention in ("sdpa", "flex")
        for layers in "12"
        for seed in "01"
    ]
    assert all((folder / line["run"] / "record.json").is_file() for line in lines)


def test_swept_values_tell_rows_apart_and_seeds_are_gathered(swept):
    rows = summarise(find_records(swept[0]).records).rows
    assert [(row.label, len(row.records)) for row in rows] == [
        (f"{name} (model.n_layers={layers})", 2) for name in ("sdpa", "flex") for layers in (1, 2)
    ]
    assert "sdpa (model.n_layers=2)" in (swept[0] / "report.html").read_text()


def test_ratios_refer_to_the_first_combination(swept):
    records = find_records(swept[0]).records
    steps = [record["cost"]["train_step_ms"] for record in records if record["status"] == "ok"]
    assert [step["ratio"] and step["ratio"]["to"] for step in steps] == [None, None] + [
        "attention=sdpa, model.n_layers=1"
    ] * 2
    assert steps[0] == steps[1]  # one model a combination is timed, for all its seeds


def test_started_again_it_does_what_is_new(swept, monkeypatch):
    _, asked, _ = swept
    started = []
    monkeypatch.setattr(children_module.Children, "call", lambda *a, **k: started.append(a))
    records = carry_out(plan_sweep(asked))
    assert started == []
    assert [record["swept"]["model.n_layers"] for record in records] == ["1", "1", "2", "2"] * 2
    more = plan_sweep([text.replace("seed=0,1", "seed=0,1,2") for text in asked])
    assert [cell.run for cell in more.cells if cell.finished() is None] == [
        f"attention={name}_model.n_layers={layers}_seed=2" for name in ("sdpa", "flex") for layers in (1, 2)
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("trainer.max_steps=2", "trainer.max_steps=1"), "trainer.max_steps: there 2, asked for 1"),
        (("model.n_layers=1,2", "model.d_model=16,32"), "swept: there"),
    ],
)
def test_another_sweep_does_not_go_into_the_same_folder(swept, change, reason):
    with pytest.raises(RequestError, match="holds another comparison") as wrong:
        plan_sweep([text.replace(*change) for text in swept[1]])
    assert any(reason in said for said in wrong.value.reasons)


def test_rates_that_no_record_keeps_make_rows_of_their_own_whatever_the_order():
    cells = [("1", 0), ("2", 0), ("2", 1), ("1", 1)]
    rows = summarise(
        [{"attention": "sdpa", "status": "ok", "seed": seed, "swept": {"lr": lr}} for lr, seed in cells]
    ).rows
    assert [(row.label, [record["swept"]["lr"] for record in row.records]) for row in rows] == [
        ("sdpa (lr=1)", ["1", "1"]),
        ("sdpa (lr=2)", ["2", "2"]),
    ]


def test_no_best_is_marked_where_the_question_differs():
    def records(key: str, **losses: float) -> list[dict]:
        quality = {"tokens_seen": 8}
        return [
            {"attention": "sdpa", "status": "ok", "seed": seed, "swept": {key: value},
             "quality": quality | {"val_bits_per_byte": loss + seed}}
            for value, loss in losses.items() for seed in (0, 1)
        ]  # fmt: skip

    across = summarise(records("data", a=1.0, b=2.0))
    assert across.rankings["val_bits_per_byte"].differ == ("data",)
    assert across.best == {}
    assert summarise(records("trainer.muon_lr", a=1.0, b=2.0)).best == {"val_bits_per_byte": 0}


def test_the_plan_is_written_for_the_report(swept):
    written = json.loads((swept[0] / "comparison.json").read_text())
    assert written["cells"][0]["swept"] == {"attention": "sdpa", "model.n_layers": "1"}
    assert written["common"]["trainer.max_steps"] == 2
