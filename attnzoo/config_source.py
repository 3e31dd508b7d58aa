"""How Hydra reads a person's own folder: within the limits of every file from anywhere."""

from __future__ import annotations

import os
from functools import cache

from attnzoo.files import read_yaml


@cache
def limited_scheme() -> str:
    """Register with Hydra how such a folder is read, by `read_yaml`; the name to put before its path (``NAME://``)."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
    from omegaconf import OmegaConf

    class LimitedSource(FileConfigSource):
        @staticmethod
        def scheme() -> str:
            return "attnzoo"

        def load_config(self, config_path: str) -> ConfigResult:
            file = os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path)))
            try:
                values = read_yaml(file)
            except FileNotFoundError:
                raise ConfigLoadError(f"Config not found : {file}") from None
            with open(file, encoding="utf-8") as opened:
                header = ConfigSource._get_header_dict(opened.read(512))
            return ConfigResult(
                provider=self.provider,
                path=f"{self.scheme()}://{self.path}",
                config=OmegaConf.create({} if values is None else values),
                header=header,
            )

    SourcesRegistry.instance().register(LimitedSource)
    return LimitedSource.scheme()
