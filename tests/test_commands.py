"""Every flag of a command arrives where it belongs, and the exit status says what became of it: with the work stood in for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from attnzoo import cli, registry
from attnzoo.commands import bench, check, doctor
from attnzoo.commands.list import describe, growth
from attnzoo.measure import bench as measured
from attnzoo.measure import peers


@pytest.fixture
def benched(monkeypatch):
    """What was to be measured; each row of it ended as ``status`` says."""
    told = {"status": "ok", "calls": []}

    def shapes(names, shapes, **how):
        told["calls"].append((names, shapes, how))
        row = {
            "backend": "sdpa",
            "level": "operator",
            "op": "forward",
            "T": 8,
            "status": told["status"],
            "reasons": ["so"],
        }
        return {"rows": [row], "growth": [], "machine": {"dtype": "float32"}}

    monkeypatch.setattr(measured, "bench_shapes", shapes)
    return told


def test_a_bench_is_told_every_size(benched, capsys):
    words = (
        "bench sdpa sliding_window sliding_window.window=5 --level model --ops decode,prefill --lengths 16,8,16 --batch-size 2 "
        "--n-heads 4,8 --n-kv-heads 2 --head-dim 16 --dtype float32,bfloat16 --rounds 7 --n-layers 3 --vocab-size 19 "
        "--decode-tokens 5 --seconds 1.5 --limit 60 --compile --fresh-memory --seed 9 --device cpu --json"
    )
    assert cli.main(words.split()) == 0
    [(names, shapes, how)] = benched["calls"]
    assert names == ["sdpa", "sliding_window"]
    assert shapes == [
        {"dtype": dtype, "batch_size": 2, "n_heads": h, "n_kv_heads": 2, "head_dim": 16}
        for dtype in (torch.float32, torch.bfloat16) for h in (4, 8)
    ]  # fmt: skip
    assert how == {
        "device": "cpu", "seconds": 1.5, "limit": 60.0, "seed": 9, "options": {"sliding_window": {"window": 5}},
        "fresh_memory": True, "level": "model", "ops": ["decode", "prefill"], "lengths": [16, 8], "compiled": True, "rounds": 7,
        "n_layers": 3, "vocab_size": 19, "decode_tokens": 5,
    }  # fmt: skip
    assert json.loads(capsys.readouterr().out)["rows"][0]["status"] == "ok"


def test_what_a_bench_takes_by_default(benched, capsys):
    assert cli.main(["bench", "--device", "cpu"]) == 0
    [(names, shapes, how)] = benched["calls"]
    assert names == registry.list_backends()
    assert shapes == [{"dtype": torch.float32, "batch_size": 1, "n_heads": 4, "n_kv_heads": None, "head_dim": 64}]
    assert how == {
        "device": "cpu", "seconds": 10.0, "limit": None, "seed": 0, "options": {}, "fresh_memory": False, "level": "operator",
        "ops": [], "lengths": [512, 1024, 2048], "compiled": False, "rounds": 200, "n_layers": 2, "vocab_size": 256,
        "decode_tokens": 16,
    }  # fmt: skip
    assert "sdpa, forward: so" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 0), ("refused", 0), ("incorrect", 1), ("failed", 1), ("interrupted", 1)]
)
def test_the_status_of_a_bench(benched, capsys, status, code):
    benched["status"] = status
    assert cli.main(["bench", "sdpa", "--device", "cpu"]) == code


def test_a_bench_writes_what_it_was_asked_for(benched, tmp_path, capsys):
    words = ["bench", "sdpa", "--device", "cpu", "--csv", str(tmp_path / "x.csv"), "--html", str(tmp_path / "x.html")]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"x.csv", "x.html", "out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.json", "bench.csv", "bench.html"}
    assert (tmp_path / "x.csv").read_text().startswith("backend,")
    assert "<html" in (tmp_path / "out" / "bench.html").read_text()
    assert (tmp_path / "out" / "bench.html").read_text() == (tmp_path / "x.html").read_text()
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["rows"][0]["T"] == 8
    same = ["--out", str(tmp_path / "new"), "--csv", str(tmp_path / "new" / "bench.csv")]
    assert cli.main(["bench", "sdpa", *same]) == 2
    assert "would write the same file" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_what_became_worse_is_status_1_and_what_cannot_be_told_is_counted(capsys):
    def row(name, ms):
        timing = {"median": ms, "low": ms, "high": ms, "ratio": None}
        return {"backend": name, "level": "operator", "op": "forward", "T": 8, "timing": timing, "status": "ok"}

    new, old = {"rows": [row("a", 2.0), row("b", 1.0)]}, {"rows": [row("a", 1.0)]}
    assert bench._worse(new, old, "old.json") is True
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "a, forward, T 8: slower, 1 → 2 (ms)", "1 of 2 rows have no counterpart in old.json:", "  b, operator, forward, T 8",
    ]  # fmt: skip
    assert bench._worse(old, new, "x") is False
    assert capsys.readouterr().err == ""


def test_races_are_told_what_applies_to_them(monkeypatch, capsys):
    told = []
    found = {"rows": [], "bars": [], "growth": [], "machine": {}}
    monkeypatch.setattr(peers, "bench_peers", lambda *names, **how: told.append((names, how)) or found)
    assert (
        cli.main(
            ["bench", "peers", "flat", "gqa", "--quick", "--seconds", "2", "--seed", "3", "--keep-freed", "--json"]
        )
        == 0
    )
    assert cli.main(["bench", "peers", "--json"]) == 0
    assert told == [
        ((["flat", "gqa"],), {"quick": True, "seconds": 2.0, "seed": 3, "keep_freed": True}),
        (([],), {"quick": False, "seconds": 10.0, "seed": 0, "keep_freed": False}),
    ]
    assert cli.main(["bench", "sdpa", "--quick", "--keep-freed", "--n-heads", "4", "--n-kv-heads", "3"]) == 2
    said = capsys.readouterr().err
    for words in ("--quick belongs to", "--keep-freed belongs to", "--n-kv-heads 3 does not divide --n-heads 4"):
        assert words in said


class Report:
    """Of a check, or of a leak test."""

    def __init__(self, failures=(), passed=True, refused=(), failed=()):
        self.failures, self.passed, self.refused, self.failed, self.tests = failures, passed, refused, failed, []

    def to_dict(self):
        return {"passed": self.passed, "tests": self.tests}

    def __str__(self):
        return "a report"


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (Report(), 0),
        (Report(failures=["x"], passed=False), 1),
        (Report(passed=False), 1),
        (Report(passed=False, refused=["no device"]), 0),
        (Report(failures=["x"], passed=True), 1),
    ],
)
def test_a_check_is_told_everything_and_its_status(monkeypatch, capsys, report, code):
    told = []
    monkeypatch.setattr("attnzoo.checks.check", lambda name, **how: told.append((name, how)) or report)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # no processes beside this one
    words = "sdpa sliding_window sliding_window.window=5 --quick --only causality --only extend --dtype float64 --device cpu"
    assert cli.main(["check", *words.split()]) == code
    how = {"device": "cpu", "dtype": torch.float64, "quick": True, "only": ["causality", "extend"]}
    assert told == [("sdpa", how), ("sliding_window", how | {"window": 5})]
    assert capsys.readouterr().out == "a report\na report\n"
    told.clear()
    assert cli.main(["check", "--all", "--device", "cpu", "--json"]) == code
    assert [name for name, _ in told] == registry.list_backends()
    assert {str(how) for _, how in told} == {str({"device": "cpu", "dtype": None, "quick": False, "only": []})}
    assert len(json.loads(capsys.readouterr().out)) == len(told)


def test_a_check_runs_a_process_a_core_and_no_more_than_it_has_work_for(monkeypatch):
    made = []

    class Pool:
        def __init__(self, workers, context, start, given):
            made.append((workers, start, given))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, one, *given):
            return map(one, *given)

    monkeypatch.setattr(check, "ProcessPoolExecutor", Pool)
    for threads, names, workers in ((4, "abc", 3), (2, "abc", 2), (1, "abc", None), (4, "a", None)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found = check._side_by_side(lambda *each: each, list(names), list(range(len(names))))
        assert list(found) == [(name, n) for n, name in enumerate(names)]
        assert made == ([] if workers is None else [(workers, torch.set_num_threads, (1,))])
        made.clear()


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["x"], 1)])
def test_a_model_is_checked_with_its_settings(monkeypatch, capsys, failures, code):
    told = []
    report = Report(failures=failures)
    monkeypatch.setattr("attnzoo.checks.model.check_model", lambda model, **how: told.append((model, how)) or report)
    settings = ["task=recall", "task.n_tokens=32", "seed=5", "model.n_layers=1", "model.d_model=32", "model.n_heads=2"]
    assert cli.main(["check", "--model", *settings, "--quick", "--device", "cpu"]) == code
    [(model, how)] = told
    assert (how["n_tokens"], how["seed"], how["quick"], how["device"]) == (32, 5, True, "cpu")
    assert how["task"].vocab_size == model.vocab_size
    assert capsys.readouterr().out == "a report\n"
    for wrong in ("--all", "--dtype=float32", "--only=x"):
        assert cli.main(["check", "--model", wrong]) == 2


class Saved(SimpleNamespace):
    """A trained model that keeps what it was asked for."""


@pytest.fixture
def saved(monkeypatch, tmp_path):
    (tmp_path / "record.json").write_text("{}")
    lm = torch.nn.Linear(1, 1)
    lm.vocab_size = 19
    told = Saved(
        model=lm, n_tokens=48, fresh=lambda: "fresh", loaded=[], tokenizer=None, no_text="has no tokenizer", name="n"
    )

    def load(folder, allow_code=False):
        told.loaded.append((str(folder), allow_code))
        return told

    monkeypatch.setattr("attnzoo.training.saved.load_saved", load)
    for module in ("leak", "sample", "show"):
        monkeypatch.setattr(f"attnzoo.commands.{module}.check_saved", lambda folder: None)
    told.folder = str(tmp_path)
    return told


@pytest.mark.parametrize(
    ("report", "code"),
    [(Report(), 0), (Report(failed=["suffix"], passed=False), 1), (Report(passed=False), 1), (Report(failed=["x"]), 1)],
)
def test_a_leak_test_is_told_everything_and_its_status(monkeypatch, capsys, saved, report, code):
    told, trained = [], []
    monkeypatch.setattr("attnzoo.checks.leak_test", lambda subject, /, **how: told.append((subject, how)) or report)
    canary = lambda *given, **how: trained.append((given, how)) or "canary"  # noqa: E731
    monkeypatch.setattr("attnzoo.checks.canary.entropy_canary", canary)
    assert cli.main(["leak", saved.folder, "--device", "cpu", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["tests"] == []
    assert (
        cli.main(["leak", saved.folder, "--tokens", "5", "--seed", "3", "--canary", "--device", "cpu", "--allow-code"])
        == code
    )
    assert capsys.readouterr().out == "a report\n"
    how = {"vocab_size": 19, "device": "cpu", "model": saved.model}
    assert told == [
        (saved.model, how | {"n_tokens": 48, "seed": 0}), (saved.model, how | {"n_tokens": 5, "seed": 3}),
    ]  # fmt: skip
    assert trained == [((saved.fresh, 19), {"seed": 3, "device": "cpu"})]
    assert report.tests == ["canary"]
    report.tests = []
    assert saved.loaded == [(saved.folder, False), (saved.folder, True)]


def test_sampling_is_told_everything(monkeypatch, capsys, saved):
    told = []

    class Model:
        def to(self, device):
            return self

        def generate(self, start, new, **how):
            told.append((start.tolist(), new, how))
            return torch.tensor([[7, 8], [9, 9]])

    saved.model = Model()
    saved.tokenizer = SimpleNamespace(
        encode=lambda text: [ord(c) for c in text], decode=lambda ids: f"said {ids}\x1b[2J"
    )
    words = "--prompt ab --tokens 5 --temperature 0.25 --top-k 4 --top-p 0.5 --seed 3 --device cpu --allow-code"
    assert cli.main(["sample", saved.folder, *words.split()]) == 0
    assert cli.main(["sample", saved.folder, "--device", "cpu"]) == 0
    assert told == [
        ([[97, 98]], 5, {"temperature": 0.25, "top_k": 4, "top_p": 0.5, "seed": 3}),
        ([[10]], 200, {"temperature": 0.8, "top_k": None, "top_p": None, "seed": 0}),
    ]
    out = capsys.readouterr().out
    assert out.startswith("said [7, 8]")
    assert "\x1b" not in out
    assert [allowed for _, allowed in saved.loaded] == [True, False]
    saved.tokenizer = None
    assert cli.main(["sample", saved.folder]) == 2
    assert cli.main(["sample", saved.folder, "--prompt", ""]) == 2
    said = capsys.readouterr().err
    assert "it has no tokenizer" in said
    assert "at least one character" in said


def test_the_heads_of_a_run_are_told_everything(monkeypatch, capsys, saved, tmp_path):
    asked = []
    saved.row = lambda n: asked.append(n) or torch.arange(n)[None]
    monkeypatch.setattr("attnzoo.measure.maps.model_maps", lambda model, row: [])
    for length in ([], ["--tokens", "7"]):
        assert cli.main(["show", saved.folder, *length, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
    assert shown == {"title": "n: what its heads read", "run": saved.folder, "n_tokens": 7, "text": None, "layers": []}
    saved.n_tokens = 500
    page = tmp_path / "x.html"
    assert cli.main(["show", saved.folder, "--allow-code", "--out", str(page)]) == 0
    assert asked == [48, 7, 128]
    assert f"picture: {page}" in capsys.readouterr().out
    assert "what its heads read" in page.read_text()
    assert [allowed for _, allowed in saved.loaded] == [False, False, True]


def test_a_picture_is_told_everything(monkeypatch, capsys):
    told = []
    real = measured_map()

    def drawn(name, **how):
        told.append((name, how))
        return real(name, n_tokens=8)

    monkeypatch.setattr("attnzoo.measure.maps.backend_map", drawn)
    assert (
        cli.main(["show", "sliding_window", "window=5", "--tokens", "16", "--head", "2", "--seed", "3", "--json"]) == 0
    )
    assert cli.main(["show", "sdpa", "--json"]) == 0
    assert told == [
        ("sliding_window", {"n_tokens": 16, "head": 2, "seed": 3, "options": {"window": 5}}),
        ("sdpa", {"n_tokens": 32, "head": 0, "seed": 0, "options": {}}),
    ]


def measured_map():
    from attnzoo.measure.maps import backend_map

    return backend_map


def test_a_backend_in_plain_values():
    found = describe("mqa", "cpu")
    assert (found["name"], found["heads"], found["positions"]) == ("mqa", "G ≤ H, default 1 of 8", "rope")
    assert (found["time"], found["memory"], found["state"]) == (2.0, 1.0, 1.0)
    assert (found["here"], found["why_not"]) == ("training", [])
    assert describe("sliding_window", "cpu")["options"].keys() == {"window"}
    here = describe("flex", "cpu")
    assert here["here"] == "inference"
    assert "backward" in here["why_not"][0]
    assert describe("gla", "cpu")["initial_memory"] is not None
    assert describe("sdpa", "cpu")["initial_memory"] is None
    assert describe("exact", "cpu")["absent"] == []
    assert "fla" in describe("gla", "cpu")["absent"]
    assert [growth(e) for e in (0.0, 1.0, 2.0, 1.5)] == ["1", "T", "T²", "T^1.5"]


def test_a_problem_is_status_1_and_named(monkeypatch, capsys):
    found = {"environment": {"torch": "2", "wandb": None}, "conf": "c", "wandb": "w", "backends": "b",
             "kernels": {"fla": ["no CUDA"], "xformers": []}, "problems": []}  # fmt: skip
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "torch 2", "wandb –", "conf c", "wandb w", "backends b", "fla kernels no CUDA", "xformers kernels can be used",
        "nothing is broken",
    ]  # fmt: skip
    found["problems"] = ["x is not installed", "y"]
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [f"{'PROBLEM':<18} {p}" for p in found["problems"]] + [
        "2 broken"
    ]
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == found


def test_what_is_missing_is_a_problem(monkeypatch):
    have = dict.fromkeys(("torch", "lightning", "hydra-core", "safetensors", "rich"), "1")
    monkeypatch.setattr("attnzoo.measure.environment.versions", lambda: have | {"wandb": None})
    assert doctor.examine()["problems"] == ["wandb is not installed"]


def test_whether_a_run_can_go_online(monkeypatch):
    asked = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr(doctor, "_netrc_knows", lambda host: False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    assert doctor.wandb_state().startswith("offline runs only: no key")

    def connect(place, timeout):
        asked.append(place)
        if fails:
            raise OSError("refused")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(doctor.socket, "create_connection", connect)
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    fails = False
    assert doctor.wandb_state() == "online runs can go to api.wandb.ai"
    for url in ("http://here.example:81", "http://here.example", "https://here.example"):
        monkeypatch.setenv("WANDB_BASE_URL", url)
        assert doctor.wandb_state() == "online runs can go to here.example"
    assert asked == [("api.wandb.ai", 443), ("here.example", 81), ("here.example", 80), ("here.example", 443)]
    fails = True
    assert doctor.wandb_state() == "offline runs only: here.example does not answer (refused)"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert doctor.wandb_state() == "not installed"
