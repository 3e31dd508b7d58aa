"""What is installed on this machine, what the defaults resolve to, and what is broken."""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from attnzoo import groups
from attnzoo.commands import add_json, print_json
from attnzoo.errors import RequestError
from attnzoo.terminal import printable


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)


def run(arguments: Namespace) -> int:
    found = examine()
    if arguments.json:
        print_json(found)
    else:
        for key, value in found["environment"].items():
            _print(f"{key:<18} {'–' if value is None else value}")
        for key in ("conf", "wandb", "backends"):
            _print(f"{key:<18} {found[key]}")
        for package, reasons in found["kernels"].items():
            _print(f"{f'{package} kernels':<18} {'; '.join(reasons) or 'can be used'}")
        for problem in found["problems"]:
            _print(f"PROBLEM            {problem}")
        _print("nothing is broken" if not found["problems"] else f"{len(found['problems'])} broken")
    return int(bool(found["problems"]))


def _print(line: str) -> None:
    print(printable(line))


def examine() -> dict[str, Any]:
    """The environment, where the configuration lies, Weights & Biases, backends, library kernels, and every problem."""
    from attnzoo import components, registry
    from attnzoo.kernels.optional import LIBRARIES, missing
    from attnzoo.measure.environment import environment, resolve_device, resolve_precision

    device = resolve_device("auto")
    precision, why = resolve_precision("auto", device)
    problems = list(_missing())
    problems += [
        f"plugin {p.name} of {p.distribution} failed to import: {p.error}" for p in components.broken_plugins()
    ]
    try:
        conf = str(groups.conf_dir())
    except RequestError as error:
        conf = "missing"
        problems.append(str(error))
    facts = environment(device, precision, why)
    shown = {key: value for key, value in facts.items() if key not in ("command", "start")}
    return {
        "environment": shown,
        "conf": conf,
        "wandb": wandb_state(),
        "backends": ", ".join(registry.list_backends()),
        "kernels": {package: missing(package, device.partition(":")[0]) for package in LIBRARIES},
        "problems": problems,
    }


def wandb_state(timeout: float = 2.0) -> str:
    """Whether runs could go online: a key, and a server that answers. Keys themselves are never read out."""
    from importlib.util import find_spec

    if find_spec("wandb") is None:
        return "not installed"
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    if not os.environ.get("WANDB_API_KEY") and not _netrc_knows(server.hostname or ""):
        return "offline runs only: no key (wandb login, or WANDB_API_KEY)"
    try:
        port = server.port or (443 if server.scheme == "https" else 80)
        socket.create_connection((server.hostname or "", port), timeout=timeout).close()
    except OSError as error:
        return f"offline runs only: {server.hostname} does not answer ({error})"
    return f"online runs can go to {server.hostname}"


def _netrc_knows(host: str) -> bool:
    import netrc

    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _missing() -> Iterator[str]:
    from attnzoo.measure.environment import versions

    have = versions()
    for package in ("torch", "lightning", "hydra-core", "wandb", "safetensors", "rich"):
        if have.get(package) is None:
            yield f"{package} is not installed"
