"""Composition: the groups, the typed result, and every fault of a request at once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from attnzoo import components, groups, registry
from attnzoo.config import compose, from_dict, load_config, to_dict, to_yaml, validate
from attnzoo.errors import RequestError
from attnzoo.model.config import AttentionConfig
from attnzoo.training.config import CompareConfig, RunConfig


def faults(kind: str, *overrides: str, **how) -> list[str]:
    """All that `compose` says, a line a fault."""
    with pytest.raises(RequestError) as caught:
        compose(kind, overrides, **how)
    return caught.value.reasons or [caught.value.message]


def test_a_run_is_typed_and_carries_the_backends_options() -> None:
    cfg = compose(
        "train", ["attention=linear", "attention.chunk=64", "model.n_layers=2", "seed=0", "trainer.muon_lr=1e-2"]
    )
    assert type(cfg) is RunConfig
    assert cfg.attention == AttentionConfig("linear", {"kernel": "auto", "chunk": 64})
    assert (cfg.model.n_layers, cfg.seed, cfg.trainer.options["muon_lr"]) == (2, 0, 0.01)
    assert cfg.trainer.options["betas"] == [0.9, 0.95]


def test_a_comparison_defaults_to_the_nine_first_backends_with_the_recall_probe() -> None:
    cfg = compose("compare")
    assert type(cfg) is CompareConfig
    assert cfg.backends == [
        "exact",
        "sdpa",
        "xformers",
        "flex",
        "sliding_window",
        "block_sparse",
        "linear",
        "gqa",
        "mqa",
    ]
    assert (cfg.seeds, cfg.probe.enabled, cfg.baseline) == ([0], True, "sdpa")


def test_the_zoo_is_every_shipped_backend() -> None:
    cfg = compose("compare", ["experiment=zoo"])
    assert isinstance(cfg, CompareConfig)
    shipped = [name for name in registry.list_backends() if registry.origin(name) == "attnzoo"]
    assert sorted(cfg.backends) == shipped
    with pytest.raises(RequestError, match=r"'backends' is a setting of attnzoo compare"):
        compose("train", ["experiment=zoo"])


def test_options_of_compared_backends() -> None:
    cfg = compose("compare", ["backends=[sliding_window,sdpa]", "options.sliding_window.window=16"])
    assert isinstance(cfg, CompareConfig)
    assert cfg.options == {"sliding_window": {"window": 16}}


@pytest.mark.parametrize("name", [name for name in registry.list_backends() if registry.origin(name) == "attnzoo"])
def test_the_preset_of_a_backend_holds_its_defaults(name: str) -> None:
    static = components.options_class("attention", name)()
    assert dataclasses.asdict(static) == dataclasses.asdict(registry.get(name).Options())


def test_every_preset_names_itself() -> None:
    for name in groups.presets("attention"):
        assert yaml.safe_load((groups.conf_dir() / "attention" / f"{name}.yaml").read_text())["name"] == name


COMPARISONS = ("zoo", "gates", "gates_slow")
"""Experiments that name backends."""


@pytest.mark.parametrize(
    ("kind", "group", "choice"),
    [
        ("train", group, choice)
        for group in groups.GROUPS
        for choice in groups.presets(group)
        if choice not in COMPARISONS
    ]
    + [("compare", "experiment", choice) for choice in groups.presets("experiment")],
)
def test_every_shipped_choice_composes(kind: str, group: str, choice: str) -> None:
    needs = {"files": [f"data.paths=[{__file__}]"], "hf": ["data.dataset=a/b"]}.get(choice, [])
    if (group, choice) in [("data", "hf"), ("data", "tinystories")] and find_spec("datasets") is None:
        pytest.skip("the extra hf is not installed")
    cfg = compose(kind, [f"{group}={choice}", *needs])
    assert from_dict(to_dict(cfg)) == cfg


def test_the_same_settings_find_the_same_folder() -> None:
    one, again = (compose("train", ["seed=1"]).run_dir for _ in range(2))
    other = compose("train", ["seed=1", "model.n_layers=1"]).run_dir
    assert one == again != other
    assert Path(one).parts[0] == "runs"


def test_a_comparisons_folder_does_not_depend_on_its_cells() -> None:
    few = compose("compare", ["backends=[sdpa]", "seeds=[0]"])
    more = compose("compare", ["backends=[sdpa,linear]", "seeds=[0,1]"])
    assert few.run_dir == more.run_dir


def test_interpolations_are_resolved() -> None:
    assert compose("train", ["run_dir=here/${model.n_layers}-${seed}"]).run_dir == "here/4-0"


def test_ones_own_folder_adds_choices(tmp_path: Path) -> None:
    write(tmp_path / "attention/window16.yaml", "name: sliding_window\nwindow: 16\n")
    write(tmp_path / "experiment/mine.yaml", "# @package _global_\ndefaults:\n  - override /model: tiny\nseed: 5\n")
    cfg = compose("train", ["attention=window16", "experiment=mine"], folders=[tmp_path])
    assert cfg.attention == AttentionConfig("sliding_window", {"kernel": "auto", "window": 16})
    assert (cfg.seed, cfg.model.d_model) == (5, 32)


def test_composing_inside_another_hydra_program_leaves_it_alone(tmp_path: Path) -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        theirs = GlobalHydra.instance().hydra
        compose("train")
        assert GlobalHydra.instance().hydra is theirs


WRONG = [
    (["attention=spda"], "unknown backend 'spda'; did you mean 'sdpa'? valid: "),
    (["model=smal"], "unknown model 'smal'; did you mean 'small'? valid: base, based, demo, "),
    (["experiment=dmo"], "unknown experiment 'dmo'; did you mean 'demo'?"),
    (["model=null"], "unknown model 'null'"),
    (["model.n_layer=3"], "unknown key 'model.n_layer'; did you mean 'model.n_layers'?"),
    (["n_layers=3"], "unknown key 'n_layers'; did you mean 'model.n_layers'?"),
    (["modle.n_layers=3"], "unknown key 'modle.n_layers'; did you mean 'model.n_layers'?"),
    (["modle=small"], "unknown key 'modle'; did you mean 'model'?"),
    (["+colour=red"], "unknown key 'colour'"),
    (["hydra.job.name=x"], "unknown key 'hydra.job.name'"),
    (["linear"], "'linear' is not KEY=VALUE; did you mean attention=linear?"),
    (["~model"], "'~model' is not KEY=VALUE"),
    (["model@here=small"], "'model@here=small' is not KEY=VALUE"),
    (["data.paths=[a"], "'data.paths=[a' cannot be read"),
    (["attention.name=liner"], "unknown backend 'liner'; did you mean 'linear'?"),
    (["task.name=recal"], "unknown task 'recal'; did you mean 'recall'? valid: mqar, recall, text"),
    (["task=text", "task.n_symbols=5"], "unknown key 'task.n_symbols'"),
    (["model.n_layers=abc"], "model.n_layers='abc': must be a whole number"),
    (["model={n_layers:x}"], "model.n_layers='x': must be a whole number"),
    (["trainer.compile=yes"], "trainer.compile=yes: valid: true, false, auto"),
    (["trainer.betas=[0.9]"], "trainer.betas=[0.9]: must have 2 values"),
    (["measure.lengths=[16,0]"], "measure.lengths=[16, 0]: each must be at least 1"),
    (["trainer.betas=[0.9,1.0]"], "trainer.betas=[0.9, 1.0]: each must be at least 0 and below 1"),
    (["task.n_tokens=0"], "task.n_tokens=0: must be at least 1"),
    (["model.n_layers=0"], "model.n_layers=0: must be at least 1"),
    (["model.n_heads=0"], "model.n_heads=0: must be at least 1"),
    (["model.n_heads=7"], "model.n_heads=7 does not divide model.d_model=256; 8 does"),
    (["model.n_kv_heads=3"], "model.n_kv_heads=3 does not divide model.n_heads=8; valid: 1, 2, 4, 8"),
    (["model.head_dim=33"], "the head dim 33 of model must be even"),
    (["positions=learned", "positions.max_tokens=8"], "learned has fewer positions than task.n_tokens=256"),
    (
        ["positions=relative", "positions.max_distance=16"],
        "positions.max_distance=16: must be more than the 16 distances",
    ),
    (["attention=sliding_window", "attention.window=0"], "window=0: a window has at least 1 key"),
    (["attention=sliding_window", "attention.windw=4"], "did you mean 'attention.window'?"),
    (["attention=linear", "attention.chunk=abc"], "attention.chunk='abc'"),
    (["attention=sdpa", "attention.kernel=flahs"], "unknown kernel of sdpa 'flahs'; did you mean 'flash'?"),
    (["trainer.max_steps=0"], "trainer.max_steps=0: must be at least 1"),
    (["trainer.batch_size=0"], "trainer.batch_size=0: must be at least 1"),
    (["trainer.muon_lr=-1"], "trainer.muon_lr=-1.0: must be more than 0"),
    (["trainer.adamw_lr=.nan"], "trainer.adamw_lr"),
    (["trainer.device=gpu"], "trainer.device=gpu: did you mean cuda? valid: auto, cpu, cuda, cuda:N"),
    (["trainer.optimizer=adam"], "trainer.optimizer=adam: did you mean adamw?"),
    (["model.dropout=1.5"], "model.dropout=1.5: must be at least 0 and below 1"),
    (["model.attention_dropout=-0.1"], "model.attention_dropout=-0.1: must be at least 0 and below 1"),
    (["seed=-1"], "seed=-1: must be between 0 and"),
    (["seed=0,1"], "seed=0,1 names several values: attnzoo sweep"),
    (["data.paths=a.txt,b.txt"], "a list is written data.paths=[a.txt,b.txt]"),
    (["attention=mine.py:Mine"], "mine.py: no such file"),
    (["task=recall", "task.n_tokens=4"], "task.n_tokens=4: recall needs at least 8"),
    (["probe=recall", "probe.n_heads=3"], "probe.n_heads=3 does not divide probe.d_model="),
    (["data=files"], "data.paths"),
    (["data=files", "data.paths=[/nowhere/book.txt]"], "/nowhere/book.txt: no such file"),
    (["run_dir=${nowhere}"], "run_dir: Interpolation key 'nowhere' not found"),
    (["run_dir=''"], "run_dir is empty"),
    ([f"run_dir={__file__}"], "is a file, a folder is needed"),
    ([f"run_dir={__file__}/deeper"], "is a file, a folder is needed"),
    (["data._target_=os.system"], "it never runs code"),
    (["+data={_target_:os.system}"], "it never runs code"),
]


@pytest.mark.parametrize(("overrides", "says"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_request_is_one_plain_line(overrides: list[str], says: str) -> None:
    (fault,) = faults("train", *overrides)
    assert says in fault
    assert not {"hydra.", "OmegaConf", "ConfigStore", "override", "struct", "Exception"} & set(fault.split()), fault
    assert "\n" not in fault


WRONG_COMPARISONS = [
    (["backends=[]"], "backends=[] is empty"),
    (["backends=sdpa"], "backends='sdpa': must be a list, such as backends=[sdpa]"),
    (["backends=[sdpa,flux]"], "unknown backend 'flux'; did you mean 'flex'?"),
    (["backends=[sdpa,sdpa]"], "backends names sdpa more than once"),
    (["seeds=[0,1,0]"], "seeds names 0 more than once"),
    (["seeds=[]"], "seeds=[] is empty"),
    (["seeds=[-1]"], "seeds: -1 must be between"),
    (["baseline=spda"], "unknown baseline 'spda'; did you mean 'sdpa'?"),
    (["backends=[sdpa]", "options.linear.chunk=1"], "options.linear: linear is not among the backends sdpa"),
    (["backends=[linear]", "options.linear.chunk=0"], "chunk=0: must be a power of two"),
    (["options.linear=3"], "options.linear=3: must be a group of keys"),
    (["jobs=0"], "jobs=0: must be at least 1"),
]


@pytest.mark.parametrize(
    ("overrides", "says"), WRONG_COMPARISONS, ids=[" ".join(words) for words, _ in WRONG_COMPARISONS]
)
def test_a_wrong_comparison_is_one_plain_line(overrides: list[str], says: str) -> None:
    (fault,) = faults("compare", *overrides)
    assert says in fault


def test_a_run_has_no_backends() -> None:
    assert faults("train", "backends=[sdpa]") == ["'backends' is a setting of attnzoo compare"]


def test_all_faults_are_said_at_once() -> None:
    found = faults("train", "attention=sdpaa", "model.n_layer=2", "model.n_layers=abc", "task.n_tokens=0", "seed=-1")
    assert len(found) == 5


def test_faults_of_files_are_plain_too(tmp_path: Path) -> None:
    files = {
        "typo": "trainer:\n  max_step: 3\n",
        "type": "trainer:\n  max_steps: abc\n",
        "code": "trainer:\n  _target_: os.system\n",
        "group": "defaults:\n  - override /model: nope\n",
        "broken": ": : [\n",
    }
    says = {
        "typo": "experiment/typo: unknown key 'trainer.max_step'; did you mean 'trainer.max_steps'?",
        "type": "experiment/type: trainer.max_steps='abc': must be a whole number",
        "code": "it never runs code",
        "group": "unknown model 'nope'; valid: base, based, demo, ",
        "broken": "broken.yaml",
    }
    for name, text in files.items():
        write(tmp_path / f"experiment/{name}.yaml", f"# @package _global_\n{text}")
        (fault,) = faults("train", f"experiment={name}", folders=[tmp_path])
        assert says[name] in fault
    write(tmp_path / "attention/code.yaml", "name: linear\n_target_: os.system\n")
    assert "it never runs code" in faults("train", "attention=code", folders=[tmp_path])[0]
    assert "no such folder" in faults("train", folders=[tmp_path / "nowhere"])[0]


def test_files_of_ones_own_folder_are_read_within_limits_and_their_texts_stay(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    for name, text in {"bomb": bomb, "deep": f"a: {'[' * 3000}{']' * 3000}\n"}.items():
        write(tmp_path / f"logger/{name}.yaml", text)
        (fault,) = faults("train", f"logger={name}", folders=[tmp_path])
        assert {"bomb": "aliases", "deep": "levels deep"}[name] in fault
    write(tmp_path / "logger/inf.yaml", "name: mine\ngroup: 83e1012\nproject: 0x10\n")
    cfg = compose("train", ["logger=inf"], folders=[tmp_path])
    assert (cfg.logger.group, cfg.logger.project) == ("83e1012", "0x10")


def test_a_configuration_made_by_hand_is_validated_the_same_way() -> None:
    cfg = RunConfig(AttentionConfig("linear", {}), seed=-1)
    cfg.model.n_heads = 7
    with pytest.raises(RequestError) as caught:
        validate(cfg)
    assert len(caught.value.reasons) == 2
    cfg.seed, cfg.model.n_heads = 0, 8
    validate(cfg)
    assert cfg.attention.options == {"kernel": "auto", "chunk": 128}


def test_the_run_folders_file_gives_the_configuration_back(tmp_path: Path) -> None:
    cfg = compose("compare", ["attention=block_sparse", "options.linear.chunk=8", "trainer.betas=[0.5,0.25]"])
    write(tmp_path / "config.yaml", to_yaml(cfg))
    assert load_config(tmp_path) == load_config(tmp_path / "config.yaml") == cfg


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("attention: {name: sdpa}\nmodel: {n_layer: 2, d_model: x}\n", "did you mean 'model.n_layers'?"),
        ("attention: {name: sdpa, _target_: os.system}\n", "it never runs code"),
        ("attention: {name: sdpa}\ndata: {paths: [{_target_: x}]}\n", "it never runs code"),
        ("model: {}\n", "attention.name is missing"),
        ("- 1\n", "holds no configuration"),
        (": [\n", "cannot be read"),
        ("!!python/object/apply:os.system [echo]\n", "cannot be read"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path / "config.yaml", text)
    with pytest.raises(RequestError) as caught:
        load_config(tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("backends=sdpa,linear", "a list is written backends=[sdpa,linear]"),
        ("seeds=0,1", "a list is written seeds=[0,1]"),
        ("attention=sdpa,linear", "attnzoo compare takes backends=[sdpa,linear]"),
        ("seed=0,1", "attnzoo compare takes seeds=[0,1]"),
        ("model.n_layers=2,4", "attnzoo sweep runs every combination"),
    ],
)
def test_a_comparison_given_several_values_names_the_list(given: str, says: str) -> None:
    (fault,) = faults("compare", *(["backends=[sdpa]"] if "backends" not in given else []), given)
    assert fault.endswith(says)


def test_a_missing_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="nowhere: no such folder"):
        load_config(tmp_path / "nowhere")


def test_without_any_conf_folder_both_places_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(groups, "__file__", str(tmp_path / "attnzoo" / "groups.py"))
    with pytest.raises(RequestError) as caught:
        groups.conf_dir()
    assert len(caught.value.reasons) == 2
    for place in (tmp_path / "attnzoo" / "conf", tmp_path / "conf"):
        assert any(str(place) in reason for reason in caught.value.reasons)
        write(place / "train.yaml", "")
        assert groups.conf_dir() == place
        (place / "train.yaml").unlink()


def test_composing_imports_no_torch() -> None:
    code = (
        "import sys; from attnzoo.config import compose; compose('train', ['attention=linear']);"
        "print(sorted({'torch', 'lightning', 'wandb', 'xformers', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("kind", list(groups.SCHEMAS))
def test_hydras_own_settings_are_not_composed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra._internal.config_repository import ConfigRepository

    read, load = [], ConfigRepository.load_config
    monkeypatch.setattr(
        ConfigRepository,
        "load_config",
        lambda self, config_path: read.append(config_path) or load(self, config_path),
    )
    compose(kind, ["experiment=tiny"])
    assert kind in read
    assert {path for path in read if path.startswith("hydra/") and not path.endswith("/None")} == {"hydra/config"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


LOOKS = ["83e1012", "1e5", "1_000", "0x10", "007", "1.50", "yes", "no", "nan", "-inf", "1e999", "true", "1:30", ".inf"]


@pytest.mark.parametrize("word", LOOKS)
def test_a_text_that_looks_like_something_else_stays_a_text(word, tmp_path):
    cfg = compose("train", [f"{key}={word}" for key in ("logger.group", "logger.name", "logger.project", "run_dir")])
    assert [cfg.logger.group, cfg.logger.name, cfg.logger.project, cfg.run_dir] == [word] * 4
    (tmp_path / "config.yaml").write_text(to_yaml(cfg))
    assert load_config(tmp_path) == cfg


@pytest.mark.parametrize("kind", ["compare", "sweep"])
def test_a_group_that_looks_like_a_number_stays_a_text(kind):
    assert compose(kind, ["logger.group=83e1012"]).logger.group == "83e1012"


def test_lists_of_texts_and_texts_that_are_numbers_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["1e5", "0x10", "a,b", "true", "c"]
    for n, name in enumerate(names):
        (tmp_path / name).write_text(f"text {n}\n" * 100)
    cfg = compose("train", ["data=files", "data.paths=[1e5, 0x10,'a,b',true,c]", "data.allow_shared_text=true"])
    assert cfg.data.options["paths"] == names
    assert compose("train", ["model.match_parameters=1_000_000"]).model.match_parameters == "1_000_000"
    assert compose("train", ["model.scale=0.250"]).model.scale == "0.250"
    assert compose("train", ["logger.group=null"]).logger.group is None
    assert compose("train", ["logger.group='null'"]).logger.group == "null"
