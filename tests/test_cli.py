"""The command line as a person meets it: exit statuses, messages, what is imported, what is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnzoo import cli, components
from attnzoo.completion import complete, script
from attnzoo.errors import AttnzooError, RequestError

HEAVY = {"torch", "lightning", "wandb", "xformers", "matplotlib", "hydra", "yaml", "rich", "torch._dynamo", "sympy"}
QUICK = ["experiment=tiny", "trainer.precision=fp32", "measure=none", "trainer.max_steps=2"]


def attnzoo(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a fresh process."""
    root = Path(cli.__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", WANDB_MODE="offline")
    return subprocess.run(
        [sys.executable, "-m", "attnzoo", *words], cwd=cwd, env=environment, capture_output=True, text=True
    )


WRONG = [
    "trian",
    "train attention=spda",
    "train model.n_layer=3",
    "train model.n_layers=abc",
    "train model.n_heads=7",
    "train model.n_kv_heads=3",
    "train task.n_tokens=0",
    "train attention=sliding_window attention.window=0",
    "train trainer.max_steps=0 trainer.batch_size=0",
    "train data=files data.paths=[empty.txt]",
    "train data=files data.paths=[nowhere.txt]",
    "train data=files data.paths=[binary.bin]",
    "train run_dir=empty.txt",
    "train run_dir=empty.txt/deeper",
    "train experiment=dmo",
    "train seed=0,1",
    "train linear",
    "train --jsn",
    "train --cfg hydra",
    "train --config-dir nowhere",
    "train data._target_=os.system",
    "train -m attention=exact,spda seed=0,-1",
    "sweep seed=0",
    "sweep attention=exact,spda jobs=0",
    "sweep trainer.muon_lr=interval(0,1) run_dir=a,b",
    "sweep seed=0,0",
    "sweep seed=0,1 seeds=[2]",
    "compare backends=[]",
    "compare backends=[sdpa,flux] seeds=[0,0]",
    "compare run_dir=empty.txt",
    "check",
    "check spda",
    "check linear --dtype float8",
    "check linear --device tpu",
    "leak",
    "check nowhere.py:make",
    "check json:dump_",
    "leak nowhere.py:make",
    "leak attnzoo.backends.exact:Exact",
    "leak nowhere",
    "leak empty.txt",
    "leak broken",
    "leak foreign",
    "check --model nowhere",
    "check --model foreign",
    "show foreign",
    "export foreign --out a",
    "leak untrained",
    "sample nowhere",
    "sample broken",
    "sample nowhere --tokens 0 --top-p 2",
    "bench spda",
    "bench sdpa --lengths 0,x --n-heads 0 --seconds 0",
    "bench sdpa --n-kv-heads 3",
    "bench sdpa --n-heads 4,6 --n-kv-heads 4 --dtype float32,fp16 --batch-size 1,",
    "bench sdpa sdpa.chunk=3",
    "bench sdpa linear.chunk=3",
    "bench sdpa --ops backward",
    "bench sdpa --quick",
    "bench sdpa --against nowhere.json",
    "bench sdpa --against empty.txt",
    "bench sdpa --out /dev/null/x",
    "bench peers flat --lengths 64 --level model --n-heads 8 --compile --device cuda --seconds 0",
    "show spda",
    "show linear --tokens 1 --out a.gif",
    "show linear chunk",
    "show linear chunks=3",
    "show empty.txt --head 1",
    "show untrained",
    "export nowhere --out a",
    "export untrained --out a",
    "export untrained",
    "import nowhere --out a",
    "import untrained --out a",
    "report nowhere",
    "report empty.txt",
    "check sdpa sdpa.kernel=flsh",
    "check sdpa gla.kernel=fla",
    "check sliding_window sliding_window.window=0",
    "check linear linear.chunk=[",
    "check linear linear.chunk=8 linear.chunk=16",
    "check linear linear.chunk=8,16",
    "bench sdpa sdpa.kernel=flsh",
    "bench sliding_window sliding_window.window=-3",
    "bench sdpa --lengths 99999999999999999999",
    "bench sdpa --lengths ² --batch-size nan --rounds 1e9 --seconds inf --limit nan --seed -1",
    "bench sdpa --out= --html= --against=",
    "bench sdpa --csv a.txt --html a.txt",
    "show sdpa kernel=flsh",
    "show sliding_window window=0",
    "show sdpa --head 4 --seed 4294967296",
    "show sdpa --out .svg/",
    "sample untrained --seed 10000000000000000000000",
    "sample untrained --tokens 99999999999",
    "sample untrained --temperature nan",
    "sample untrained --temperature -1",
    "sample untrained --temperature inf",
    "sample untrained --prompt=",
    "sample=",
    "leak untrained --tokens 10000000000000000000000 --seed 10000000000000000000000",
    "leak untrained --device cuda:",
    "leak untrained --device cuda:²",
    "train attention=sdpa attention.kernel=flsh",
    "compare backends=[sdpa] options.sdpa.kernel=flsh",
    "sweep seed=0,1 attention=sdpa attention.kernel=flsh",
    "train model.attention_pattern=[sdpa] model.attention_options.sdpa.kernel=flsh",
    "export untrained --out empty.txt",
    "export untrained --out empty.txt/deeper",
    "list --json=1",
    "list --jsn",
    "list extra",
    "--versoin",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an empty text, a binary file, a broken run folder, one without weights, another program's model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.bin").write_bytes(b"\xff\xfe\x00")
    for name, text in (("broken", "attention: ["), ("untrained", "attention: {name: sdpa}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_request_is_one_message_status_2_and_leaves_nothing(
    line: str, place: Path, capsys: pytest.CaptureFixture
) -> None:
    before = sorted(place.rglob("*"))
    status = cli.main(line.split())
    out, err = capsys.readouterr()
    assert status == 2
    assert err.startswith("attnzoo: ")
    assert err.count("attnzoo: ") == 1
    assert "Traceback" not in err
    assert len(err) < 2500
    assert out == ""
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    "line", ["train attention=spda", "compare backends=[]", "leak broken", "sample nowhere", "lst"]
)
def test_a_wrong_request_in_a_real_process(line: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = attnzoo(*line.split(), cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("attnzoo: ")
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    assert sorted(place.rglob("*")) == before


def test_every_wrong_flag_is_in_one_message(capsys: pytest.CaptureFixture) -> None:
    words = "sample run --seed 1e22 --tokens 99999999999 --temperature nan --top-p 0 --device cdua --topk=1"
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.splitlines() == [
        "attnzoo: sample: --seed 1e22: must be a whole number, 0 to 4294967295",
        "  - --tokens 99999999999: must be a whole number, 1 to 1048576",
        "  - --temperature nan: must be a number, 0 or more",
        "  - --top-p 0: must be a number, more than 0 and at most 1",
        "  - --device cdua: unknown device 'cdua'; did you mean 'cuda'? valid: auto, cpu, cuda, cuda:N",
        "  - unknown option '--topk'; did you mean '--top-k'? valid: --allow-code, --debug, --device, --help, --prompt, --seed, "
        "--temperature, --tokens, --top-k, --top-p, -h",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "check sdpa sdpa.kernel=flsh",
        "bench sdpa sdpa.kernel=flsh",
        "show sdpa kernel=flsh",
        "train attention.kernel=flsh",
    ],
)
def test_a_misspelt_kernel_is_named_with_the_nearest(line: str, place: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(line.split()) == 2
    assert "unknown kernel of sdpa 'flsh'; did you mean 'flash'?" in capsys.readouterr().err


def test_an_option_is_read_alike_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    import attnzoo as package

    cfg = package.compose("train", ["attention=softcap", "attention.cap=1e1"])
    assert cfg.attention.options["cap"] == 10.0
    assert cli.main(["show", "softcap", "cap=1e1", "--tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["cap"] == 10.0
    assert package.build("softcap", n_heads=1, head_dim=4, cap="1e1").options.cap == 10.0
    words = "check softcap softcap.cap=1e1 --only determinism --quick --dtype float32 --json"
    assert cli.main(words.split()) == 0
    for wrong in ("on", "0x10", "a", "null", "[1]"):
        for line in (
            f"show softcap cap={wrong}",
            f"check softcap softcap.cap={wrong}",
            f"train attention=softcap attention.cap={wrong}",
        ):
            assert cli.main(line.split()) == 2, line
            assert "attention.cap=" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["leak"],
        ["export", "run", "--out"],
        ["show", "sdpa", "--out"],
        ["train", "attention=sdpa"],
        ["list"],
    ],
)
def test_what_is_no_text_is_refused_before_any_work(
    words: list[str], place: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main([*words, os.fsdecode(b"run_dir=\xff")]) == 2
    assert capsys.readouterr().err.startswith("attnzoo: run_dir=\\udcff is not UTF-8")


def test_code_that_ends_the_program_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def leave(arguments: object) -> int:
        raise SystemExit(0)

    monkeypatch.setattr("attnzoo.commands.list.run", leave)
    assert cli.main(["list"]) == 1
    assert "ended the program" in capsys.readouterr().err


def test_a_terminal_without_unicode_is_enough(tmp_path: Path) -> None:
    root = Path(cli.__file__).resolve().parents[1]
    environment = dict(os.environ, PYTHONPATH=str(root), PYTHONIOENCODING="ascii")
    for words in (["bench", "--help"], ["show", "sdpa", "--tokens", "2", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "attnzoo", *words], cwd=tmp_path, env=environment, capture_output=True
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode("ascii")


def test_every_fault_and_the_nearest_name_are_in_the_message(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "attention=spda", "model.n_layer=3", "task.n_tokens=0"]) == 2
    err = capsys.readouterr().err
    for part in ("3 faults", "did you mean 'sdpa'?", "did you mean 'model.n_layers'?", "task.n_tokens=0"):
        assert part in err


def loaded(*words: str, cwd: Path) -> set[str]:
    """The heavy packages that a command has imported when it ends."""
    code = (
        "import sys\nfrom attnzoo.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('\\nLOADED', *sorted({HEAVY} & set(sys.modules)))"
    )
    root = Path(cli.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env=dict(os.environ, PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("--help", set()),
        ("train --help", {"yaml"}),
        ("compare --help", {"yaml"}),
        ("bench --help", {"yaml"}),
        ("show --help", {"yaml"}),
        ("export --help", {"yaml"}),
        ("import --help", {"yaml"}),
        ("__complete show lin", {"yaml"}),
        ("--completion bash", {"yaml"}),
        ("__complete train attention=", {"yaml"}),
        ("train attention=linear --cfg job", {"hydra", "yaml"}),
        ("compare --cfg job", {"hydra", "yaml"}),
        ("list", {"torch", "rich", "yaml"}),
    ],
)
def test_only_what_a_command_needs_is_imported(line: str, allowed: set[str], tmp_path: Path) -> None:
    assert loaded(*line.split(), cwd=tmp_path) <= allowed


def test_help_needs_few_modules_beyond_the_interpreters_own(tmp_path: Path) -> None:
    root = Path(cli.__file__).resolve().parents[1]
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-c", f"import atexit, sys\natexit.register(lambda: print(len(sys.modules)))\n{code}"],
                cwd=tmp_path, env=dict(os.environ, PYTHONPATH=str(root)), capture_output=True, text=True, check=True,
            ).stdout.split()[-1]
        )
        for code in ("import argparse", "from attnzoo.cli import main\nmain(['--help'])")
    ]  # fmt: skip
    assert counts[1] - counts[0] < 40  # yaml or dataclasses would bring more than the ten that are left


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: attnzoo {command}" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown_and_the_request_is_wrong(capsys: pytest.CaptureFixture) -> None:
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    assert all(command in out for command in cli.COMMANDS)


def test_cfg_prints_what_a_run_folder_would_hold(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    from attnzoo.config import compose, load_config

    assert cli.main(["train", "attention=linear", "--cfg", "job", "model.n_layers=2"]) == 0
    (tmp_path / "config.yaml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path) == compose("train", ["attention=linear", "model.n_layers=2"])


def test_list_and_doctor_speak_json(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["list", "--json", "--device", "cpu"]) == 0
    listed = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in listed["backends"]}
    assert (rows["sdpa"]["here"], rows["flex"]["here"], rows["xformers"]["here"]) == ("training", "inference", "none")
    assert rows["xformers"]["why_not"]
    assert (rows["linear"]["state"], rows["linear"]["options"]) == (0.0, {"chunk": 128})
    assert [rows[name]["positions"] for name in ("linear", "gla")] == ["rope", "none"]
    assert (rows["linear"]["initial_memory"], round(rows["mamba2"]["initial_memory"])) == (None, 14)
    assert set(listed["components"]) == set(components.KINDS)
    assert {row["name"]: row["options"] for row in listed["components"]["positions"]}["rope"] == {"base": 10000.0}
    assert cli.main(["list", "positions", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["backends"], list(alone["components"])) == ([], ["positions"])
    assert cli.main(["list", "positon"]) == 2
    assert "did you mean 'positions'" in capsys.readouterr().err
    status = cli.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == int(bool(found["problems"]))
    assert found["environment"]["torch"]
    assert Path(found["conf"], "train.yaml").is_file()


def test_the_list_shows_each_backend_and_why_not(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["list", "--device", "cpu"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "inference only" in text
    assert "xformers has no operator" in text
    assert all(name in text for name in ("block_sparse", "exact", "linear", "mqa", "recall", "alibi", "base=10000.0"))


def test_doctor_never_shows_a_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "sesame-sesame")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: nobody answers
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert "sesame" not in out
    assert "127.0.0.1 does not answer" in out


def test_check_passes_a_right_backend_and_speaks_json(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["check", "exact", "--only", "definition", "--dtype", "float32", "--quick", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["subject"], report["passed"]) == ("exact", True)


def test_bench_measures_writes_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["bench", "exact", "flex", "--lengths", "16", "--head-dim", "8", "--rounds", "2", "--seconds", "0.2"]
    assert cli.main([*words, "--device", "cpu", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["backend"], row["op"]): row["status"] for row in found["rows"]} == {
        ("exact", "forward"): "ok",
        ("exact", "forward+backward"): "ok",
        ("flex", "forward"): "ok",
        ("flex", "forward+backward"): "refused",
    }
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.csv", "bench.html"}
    for row in found["rows"]:
        row["peak_memory_bytes"] = 1  # it has become larger since
    (tmp_path / "old.json").write_text(json.dumps(found))
    assert cli.main([*words, "--device", "cpu", "--against", str(tmp_path / "old.json")]) == 1
    said = capsys.readouterr().err
    assert "exact" in said
    assert "counterpart" not in said
    longer = [word.replace("16", "16,32") for word in words]
    assert cli.main([*longer, "--device", "cpu", "--against", str(tmp_path / "old.json")]) == 1
    assert f"4 of 8 rows have no counterpart in {tmp_path / 'old.json'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "apart"),
    [
        ("exact --lengths 64", "T: here 64, there 16"),
        ("gqa --lengths 16 --level model", "backend: here gqa, there exact; level: here model, there operator"),
        ("peers flat", "races: here flat, there no races"),
    ],
)
def test_nothing_in_common_is_said_before_anything_is_measured(words, apart, tmp_path, capsys, monkeypatch):
    def measure(*_, **__):
        raise AssertionError("it was measured")

    monkeypatch.setattr("attnzoo.measure.bench.bench_shapes", measure)
    monkeypatch.setattr("attnzoo.measure.peers.bench_peers", measure)
    heads = {"op": "forward", "B": 1, "H": 4, "G": 4, "D": 64, "dtype": "float32", "status": "ok"}
    (tmp_path / "old.json").write_text(
        json.dumps({"rows": [{"backend": "exact", "level": "operator", "T": 16, **heads}]})
    )
    assert cli.main(["bench", *words.split(), "--against", str(tmp_path / "old.json")]) == 2
    said = capsys.readouterr().err
    assert all(reason in said for reason in apart.split("; "))


def test_show_draws_a_backend_with_options(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["show", "sliding_window", "window=2", "--tokens", "4"]
    assert cli.main([*words, "--out", str(tmp_path / "a.svg")]) == 0
    out = capsys.readouterr().out
    assert "\033" not in out
    assert "│█▄  │" in out
    assert "│ ▀█▄│" in out
    assert out.endswith(f"picture: {tmp_path / 'a.svg'}\n")
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    pytest.importorskip("resvg_py")
    assert cli.main([*words, "--out", str(tmp_path / "a.png")]) == 0
    capsys.readouterr()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main([*words[:2], "attention.window=2", *words[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {"window": 2}


def test_show_names_the_extra_that_a_png_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr("attnzoo.commands.show.installed", lambda package: False)
    assert cli.main(["show", "sdpa", "--out", str(tmp_path / "a.png")]) == 2
    assert "pip install 'attnzoo[png]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_import_writes_what_load_reads(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    import attnzoo as package

    cfg = package.compose("train", ["model=tiny", "attention=gqa"])
    package.export_llama(package.build_model(cfg), tmp_path / "llama")
    assert cli.main(["import", str(tmp_path / "llama"), "--out", str(tmp_path / "out"), "--attention", "exact"]) == 0
    assert package.load(tmp_path / "out").attention_modules()[0].name == "exact"
    capsys.readouterr()
    # what import wrote has no tokenizer: all but text works on it
    assert cli.main(["leak", str(tmp_path / "out"), "--tokens", "16"]) == 0
    capsys.readouterr()
    assert cli.main(["show", str(tmp_path / "out"), "--tokens", "8", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["text"], shown["n_tokens"], shown["layers"][0]["backend"]) == (None, 8, "exact")
    assert cli.main(["sample", str(tmp_path / "out")]) == 2
    assert "exported without a tokenizer" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "llama"), "--out", str(tmp_path / "no"), "--attention", "linear"]) == 2


def test_a_run_from_training_to_sample_leak_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *QUICK, "attention=linear", "attention.chunk=8", "run_dir=run"]) == 0
    assert "run folder: run" in capsys.readouterr().out
    assert json.loads(Path("run/record.json").read_text())["status"] == "ok"
    assert cli.main(["leak", "run", "--tokens", "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert cli.main(["show", "run", "--tokens", "8", "--out", "heads.html", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [len(layer["heads"][0]["weights"]) for layer in shown["layers"]] == [8] * len(shown["layers"])
    assert "What was read" in Path("heads.html").read_text()
    assert cli.main(["export", "run", "--out", "out"]) == 0
    assert cli.main(["export", "run", "--out", "out"]) == 2  # it is there already
    assert cli.main(["export", "run", "--out", "llama", "--format", "llama"]) == 2
    out, err = capsys.readouterr()
    assert "attnzoo.load('out')" in out
    assert "attention linear" in err
    assert not Path("llama").exists()
    texts = []
    for seed in ("1", "1", "2"):
        assert cli.main(["sample", "run", "--prompt", "Call ", "--tokens", "12", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("Call ")
    assert cli.main(["sample", "out", "--prompt", "Call ", "--tokens", "12", "--seed", "1"]) == 0
    assert capsys.readouterr().out == texts[0]  # the exported model is the trained one
    assert cli.main(["leak", "out", "--tokens", "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert cli.main(["show", "out", "--tokens", "8", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)
    assert (text["n_tokens"], len(text["text"]), text["title"]) == (8, 8, shown["title"])
    for folder, task in (("run", "passed"), ("out", "skipped")):
        assert cli.main(["check", "--model", folder, "--quick", "--json"]) == 0
        found = {test["name"]: list(test["cases"]) for test in json.loads(capsys.readouterr().out)["tests"]}
        assert (found["generation"], found["label_shift"]) == (["passed"], [task])
    assert cli.main(["export", "out", "--out", "again"]) == 0
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    capsys.readouterr()
    assert cli.main(["report", "run"]) == 0
    assert Path("run/report.html").is_file()
    assert Path("run/summary.csv").is_file()
    weights = Path("run/checkpoints/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    assert cli.main(["leak", "run"]) == 2
    assert "model.safetensors cannot be read" in capsys.readouterr().err


def test_a_refused_run_is_a_wrong_request_with_every_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *QUICK, "attention=flex", "trainer.device=cpu"]) == 2
    out = capsys.readouterr().out
    assert "refused" in out
    assert "no backward" in out


def test_train_m_is_a_sweep(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "-m", "seed=0,1", "--cfg", "job"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed:")] == ["seed: 0", "seed: 1"]


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (RequestError("no", ["a", "b"]), 2, "attnzoo: no\n  - a\n  - b\n"),
        (AttnzooError("broke"), 1, "attnzoo: broke\n"),
        (KeyboardInterrupt(), 130, "attnzoo: stopped from the keyboard\n"),
        (OSError(28, "No space left on device", "runs/x"), 2, "attnzoo: runs/x: No space left on device\n"),
    ],
)
def test_one_place_turns_errors_into_messages(
    error: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(cli, "run", raising(error))
    assert cli.main(["list"]) == status
    assert capsys.readouterr().err == says


def test_a_bug_is_one_line_and_its_traceback_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "run", raising(ZeroDivisionError("oops")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["list"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("attnzoo: unexpected ZeroDivisionError: oops\n")
    (kept,) = tmp_path.glob("attnzoo-*.txt")
    assert str(kept) in err
    assert "Traceback" in kept.read_text()
    assert cli.main(["list", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    root = Path(cli.__file__).resolve().parents[1]
    command = f"{sys.executable} -m attnzoo compare --cfg job | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=dict(os.environ, PYTHONPATH=str(root)), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("attention:\n", "")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tr", ["train"]),
        ("train attention=li", ["attention=linear"]),
        ("train model.n_l", ["model.n_layers="]),
        ("train exp", ["experiment="]),
        ("train experiment=t", ["experiment=tiny"]),
        ("train attention=linear attention.c", ["attention.chunk="]),
        ("train attention=exact,li", ["attention=exact,linear"]),
        ("sweep attention=exact,li", ["attention=exact,linear"]),
        ("sweep jo", ["jobs="]),
        ("compare backends=[sdpa,fl", ["backends=[sdpa,flex"]),
        ("compare seeds", ["seeds="]),
        ("train seeds", []),
        ("train --m", ["--multirun"]),
        ("check sl", ["sliding_window"]),
        ("check rec", ["recall"]),
        ("list pos", ["positions"]),
        ("train positions.ba", ["positions.base="]),
        ("train positions=relative positions.bu", ["positions.buckets="]),
        ("train positions.pattern=[none,ro", ["positions.pattern=[none,rope"]),
        ("leak ru", []),
        ("nothing x", []),
    ],
)
def test_completion(line: str, found: list[str]) -> None:
    assert complete(line.split()) == found
    assert set(cli.COMMANDS) <= set(complete([""]))


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("attnzoo tra", ["train"]),
        ("attnzoo train attention=li", ["linear"]),
        ("attnzoo compare backends=[exact,fl", ["[exact,flex"]),
    ],
)
def test_bash_completes(line: str, replies: list[str], tmp_path: Path) -> None:
    """In a real bash, with the variables that readline would set; it replaces what follows the last "=" only."""
    root = Path(cli.__file__).resolve().parents[1]
    lines = [
        f'attnzoo() {{ PYTHONPATH={root} {sys.executable} -m attnzoo "$@"; }}',
        script("bash"),
        f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDBREAKS=$' \\t\\n=:'",
        "_attnzoo",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == replies


def raising(error: BaseException):
    def run(words: list[str], debug: bool = False) -> int:
        raise error

    return run
