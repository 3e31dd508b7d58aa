"""A winner is named where there is evidence for it, and the same one everywhere."""

import copy
import csv
import re

import pytest

from attnzoo.report import write_csv, write_report
from attnzoo.report.columns import Column
from attnzoo.report.ranking import Ranking, rank
from attnzoo.report.records import find_records
from attnzoo.report.rows import summarise

LOSS = "val_bits_per_byte"


def only(records, *names, seeds=(0, 1, 2)):
    return [r for r in records if r["attention"] in names and r["seed"] in seeds]


def put(records, name, path, values):
    """Give the seeds of a backend these numbers."""
    mine = [r for r in records if r["attention"] == name]
    for record, value in zip(mine, values, strict=True):
        *parts, last = path.split(".")
        for part in parts:
            record = record[part]
        record[last] = value


def best(records, key=LOSS):
    """The label of the winner, or the reason why there is none."""
    summary = summarise(records)
    ranking = summary.rankings.get(key)
    if ranking is None:
        return None
    assert (ranking.best is None) == bool(ranking.reason)
    return ranking.reason if ranking.best is None else summary.rows[ranking.best].label


def test_the_best_is_better_than_every_other(records):
    assert best(records) == "sliding_window"
    assert best(records, "val_loss_nats") == "sliding_window"
    summary = summarise(records)
    row = summary.rows[summary.best[LOSS]]
    assert {LOSS, "val_loss_nats", "val_perplexity"} <= set(summary.best_in(row))
    assert "parameters" not in summary.rankings  # neither direction is better


def test_one_seed_has_no_winner(records):
    one = only(records, "exact", "sliding_window", seeds=(0,))
    assert best(one) == "undecided at 1 seed"
    assert best(one, "recall_accuracy") == "undecided at 1 seed"
    assert "undecided at 1 seed" in " ".join(summarise(one).remarks)


def test_seeds_are_paired(records):
    """Differences of 0.01 within each seed, under a spread over seeds of 1: told apart, though the intervals overlap."""
    two = only(records, "exact", "sdpa")
    put(two, "exact", f"quality.{LOSS}", [1.0, 2.0, 3.0])
    put(two, "sdpa", f"quality.{LOSS}", [1.011, 2.009, 3.01])
    assert best(two) == "exact"
    put(two, "sdpa", f"quality.{LOSS}", [2.009, 3.01, 1.011])  # the same numbers under other seeds
    assert best(two) == "undecided at 3 seeds between exact, sdpa"


def test_only_common_seeds_are_compared(records):
    two = [*only(records, "exact", seeds=(0, 1)), *only(records, "sdpa", seeds=(1, 2))]
    assert best(two) == "undecided at 1 seed"


def test_the_higher_is_better_where_it_is(records):
    two = only(records, "exact", "sdpa")
    put(two, "exact", "quality.task_accuracy.recall", [0.9, 0.91, 0.92])
    put(two, "sdpa", "quality.task_accuracy.recall", [0.5, 0.51, 0.52])
    assert best(two, "recall_accuracy") == "exact"


def test_nobody_wins_at_chance(records):
    two = only(records, "exact", "sdpa")  # chance is 1/64
    at_chance = "undecided at 3 seeds: none can be told from chance (0.0156)"
    put(two, "sdpa", "quality.task_accuracy.recall", [0.0051, 0.0102, 0.0153])
    put(two, "exact", "quality.task_accuracy.recall", [0.010, 0.015, 0.020])  # above sdpa at every seed
    assert best(two, "recall_accuracy") == at_chance
    put(two, "exact", "quality.task_accuracy.recall", [0.30, 0.31, 0.32])
    assert best(two, "recall_accuracy") == "exact"
    put(two, "exact", "quality.task_accuracy.recall", [0.0, 0.31, 0.32])  # its mean is above, its interval is not
    assert best(two, "recall_accuracy") == at_chance


def test_all_alike_has_no_best(records):
    assert best(records, "cache_bytes") is None
    assert best(only(records, "exact"), LOSS) is None  # one row


def test_memory_is_ranked_by_seeds_too(records):
    assert best(only(records, "exact", "sdpa", "gqa"), "train_peak_memory_bytes") == "gqa"


@pytest.mark.parametrize("key", ["train_step_ms", "train_step_ratio"])
def test_timings_are_ranked_by_ratios_of_the_same_rounds(records, key):
    three = only(records, "exact", "sdpa", "mqa", seeds=(0,))  # 148, 92 and 87 ms; one timing stands for a variant
    assert best(three, "train_step_ms") == "mqa"
    for record in three:
        if record["attention"] == "mqa":
            record["cost"]["train_step_ms"]["ratio"].update(median=0.97, low=0.93, high=1.02)
    assert best(three, "train_step_ms") == "undecided between mqa, sdpa: their ratios overlap"
    # the times themselves are apart, but within the rounds one cannot tell
    assert best([r for r in three if r["attention"] != "sdpa"], key) == "mqa"  # 1.6 against 0.97


def test_the_baseline_can_win(records):
    assert best(only(records, "exact", "sdpa", seeds=(0,)), "train_step_ms") == "sdpa"


def test_no_ratios_no_ranking(records):
    two = only(records, "exact", "sdpa")
    for record in two:
        record["cost"]["train_step_ms"]["ratio"] = None
    assert best(two, "train_step_ms") == "undecided: no ratios within common rounds"


def test_what_leaks_or_is_wrong_or_diverged_or_has_left_the_plan_is_no_rival(records):
    two = only(records, "exact", "sdpa", "gqa")
    put(two, "gqa", f"quality.{LOSS}", [0.1, 0.2, 0.3])
    put(two, "sdpa", f"quality.{LOSS}", [2.0, 2.0, 2.0])
    put(two, "exact", f"quality.{LOSS}", [2.5, 2.5, 2.5])
    assert best(two) == "gqa"
    for spoil, why in (
        ({"leak": {"passed": False, "tests": []}}, "LEAKS"),
        ({"correct": {"passed": False, "tests": []}}, "incorrect"),
        ({"warnings": ["training diverged: the loss ended at 49.7 bits a byte"]}, "diverged"),
    ):
        spoilt = copy.deepcopy(two)
        next(r for r in spoilt if r["attention"] == "gqa" and r["seed"] == 1).update(spoil)
        assert best(spoilt) == "sdpa"
        row = next(row for row in summarise(spoilt).rows if row.label == "gqa")
        assert row.title == f"gqa ({why})"
        assert row.values[LOSS].value == pytest.approx(0.2)  # shown, not ranked
        assert f"not ranked: gqa ({why})" in summarise(spoilt).remarks
    gone = [r | {"planned": r["attention"] != "gqa"} for r in two]
    assert best(gone) == "sdpa"
    assert summarise(gone).rows[-1].title == "gqa (no longer in the plan)"


@pytest.mark.parametrize(
    ("path", "value", "key", "named"),
    [
        ("environment.device", "cuda", "train_step_ms", "device"),
        ("environment.compiled", True, "train_step_ms", "compiled"),
        ("environment.tf32", True, "train_step_ms", "tf32"),
        ("environment.threads", 7, "train_peak_memory_bytes", "threads"),
        ("cost.shape", {"batch_size": 1}, "decode_ms_per_token", "shape"),
        ("cost.timing_id", "rounds-2", "train_step_ms", "the start they were timed at"),
        ("cost.timing_id", None, "train_step_ms", "the start they were timed at"),
        ("quality.tokens_seen", 7, LOSS, "tokens_seen"),
        ("data", {"sha256": "ab"}, LOSS, "data"),
        ("quality.data", {"sha256": "ab"}, "recall_accuracy", "data"),
    ],
)
def test_nothing_is_best_among_rows_that_cannot_be_compared(records, path, value, key, named):
    *parts, last = path.split(".")
    for record in records:
        if record["attention"] == "exact":
            for part in parts:
                record = record[part]
            record[last] = value
    summary = summarise(records)
    ranking = summary.rankings[key]
    assert ranking == Ranking(reason=f"the rows differ in {named}", differ=(named,))
    assert key not in summary.best
    other = "train_step_ms" if key == LOSS else LOSS
    assert other in summary.best or named == "data" or other == "train_step_ms"


def test_rows_without_any_known_rounds_are_not_ranked(records):
    for record in only(records, "exact", "sdpa"):
        del record["cost"]["timing_id"]
    assert best(only(records, "exact", "sdpa"), "train_step_ms") == "the rows differ in the start they were timed at"


def test_swept_data_are_other_questions(records):
    for record in records:
        record["swept"] = {"data.name": record["attention"], "model.n_layers": 2}
    assert best(only(records, "exact", "sdpa")) == "the rows differ in data.name"


def test_a_column_without_a_direction_is_not_ranked(records):
    rows = summarise(records).rows
    assert rank(rows, Column("parameters", "", "", "cost.parameters", "size", "", None)) is None


def test_many_names_are_cut(records):
    for record in records:
        if record["status"] == "ok":
            record["quality"][LOSS] = 2.0 + 0.1 * record["seed"] * (record["attention"] == "exact")
    many = only(records, "exact", "sdpa", "gqa", "sliding_window", "block_sparse", "linear")
    for record in many:
        record["leak"], record["correct"] = {"passed": True}, {"passed": True}
    assert best(many) == "undecided at 3 seeds between sdpa, exact, gqa, sliding_window, 2 more"


def test_table_page_and_csv_name_the_same(folder, parse, tmp_path):
    records = find_records(folder).records
    summary = summarise(records)
    winners = {key: summary.rows[i].label for key, i in summary.best.items()}
    assert winners["train_step_ms"] == "mqa"
    page = parse(write_report(folder).read_text(encoding="utf-8"))
    for remark in summary.remarks:
        assert remark in page.text
    with write_csv(records, tmp_path / "summary.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        assert set(filter(None, line["best_in"].split("; "))) == {
            k for k, name in winners.items() if name == line["attention"]
        }
    assert {line["not_ranked"] for line in lines if line["attention"] == "block_sparse"} == {"LEAKS"}


def test_cards_say_who_or_why_not(folder):
    card = r'<p class="what">(.*?)</p><p class="who">(.*?)</p><p class="value">(.*?)</p>'
    assert re.findall(card, write_report(folder).read_text(encoding="utf-8")) == [
        ("best on text", "sliding_window", "2.341 bits/byte"),
        ("best on recall", "undecided", "at 3 seeds between sdpa, exact, gqa"),
        ("fastest training step", "mqa", "86.9 ms"),
        ("least training memory", "mqa", "104 MiB"),
        ("fastest decoding", "mqa", "1.49 ms/token"),
    ]


def test_a_question_that_is_the_same_for_all_is_no_difference(records):
    for record in records:
        record["swept"] = {"task.name": "text", "model.scale": record["attention"]}
    assert best(only(records, "exact", "sliding_window")).startswith("sliding_window")


def test_one_rival_with_a_single_common_seed_is_enough_to_be_undecided(records):
    found = [*only(records, "sliding_window", "exact"), *only(records, "linear", seeds=(1,))]
    for record in found:
        record["correct"] = {"passed": True}
    assert best(found) == "undecided at 1 seed"


def test_the_seeds_named_are_the_fewest_of_those_undecided(records):
    found = [*only(records, "sdpa", "exact"), *only(records, "gqa", seeds=(0, 1))]
    put(found, "exact", f"quality.{LOSS}", [2.0, 2.0, 2.0])
    put(found, "gqa", f"quality.{LOSS}", [2.0, 2.1])
    put(found, "sdpa", f"quality.{LOSS}", [1.99, 2.0, 2.001])
    assert best(found) == "undecided at 2 seeds between sdpa, exact, gqa"


def test_rows_of_two_starts_are_not_ranked_though_each_is_known(records):
    two = only(records, "exact", "sdpa", seeds=(0,))
    two[1]["cost"]["timing_id"] = "rounds-2"
    assert best(two, "train_step_ms") == "the rows differ in the start they were timed at"


def test_a_task_whose_chance_nobody_knows_has_a_winner_by_its_seeds(records):
    two = only(records, "exact", "sdpa")
    put(two, "exact", "quality.task_accuracy.recall", [0.9, 0.91, 0.92])
    put(two, "sdpa", "quality.task_accuracy.recall", [0.5, 0.51, 0.52])
    for record in two:
        del record["quality"]["task_chance"]
    assert best(two, "recall_accuracy") == "exact"
