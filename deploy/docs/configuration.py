"""Writes docs/configuration.md: types, defaults and bounds from the settings' model, words from conf/gateway.yaml.

`python -m deploy.docs.configuration`, or `make docs`. A key without a comment in that file is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from gateway.settings import ENV_PREFIX, CatalogSettings, Settings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "conf" / "gateway.yaml"
PAGE = ROOT / "docs" / "configuration.md"

_HEAD = f"""<!-- Made by `make docs` from gateway/settings.py and conf/gateway.yaml: change those. -->

# Configuration

Deltaport reads its settings once, when it starts:

1. from the YAML file that `--config` or `{ENV_PREFIX}CONFIG` names; without one, the defaults hold;
2. from the environment, which wins over the file. A variable is the prefix `{ENV_PREFIX}` and the key in upper case,
   with two underscores between levels: `{ENV_PREFIX}SCAN__ENGINE=spark` sets `scan.engine`.

An unknown key is an error, in both places. `conf/gateway.yaml` in the project holds every key with its default. This
prints what is in force, without secrets:

```sh
deltaport check-config --config conf/gateway.yaml
```

A file needs only what differs from the defaults:

```yaml
catalogs:
  lake:
    warehouse: /data/lake
    default: true
spark:
  driver_memory: 4g
```
"""

_TAIL = f"""
## Other variables

These are read by the command line and by set-up. They are no settings.

| variable | |
|---|---|
| `{ENV_PREFIX}CONFIG` | the settings file, as `--config` |
| `{ENV_PREFIX}JARS_DIR` | where Delta's jars are kept; without it, in the Python environment |
| `{ENV_PREFIX}IVY_SETTINGS` | an Ivy settings file that names a mirror, for `deltaport fetch-jars` |
"""


def page() -> str:
    comments = read_comments(EXAMPLE.read_text(encoding="utf-8"))
    sections = (_section(name, field, comments) for name, field in Settings.model_fields.items())
    return "\n".join([_HEAD, *sections]) + _TAIL


def read_comments(text: str) -> dict[str, str]:
    """What the comments of a settings file say, by key: beside a key and below that, or above a section."""
    comments: dict[str, list[str]] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"(?P<indent> *)(?P<key>\w+):(?P<value>[^#]*)(?:# (?P<words>.*))?$", line):
            path = [*path[: len(found["indent"]) // 2], found["key"]]
            comments[".".join(path)] = above if found["words"] is None else [found["words"]]
            above = []
        elif found := re.match(r"# (?P<words>.*)$", line):
            above.append(found["words"])
        elif found := re.match(r" +# (?P<words>.*)$", line):
            comments[".".join(path)].append(found["words"])
        else:
            above = []
    for key, lines in comments.items():
        if not lines and key.split(".")[0] != "catalogs":
            raise ValueError(f"{EXAMPLE.name}: {key} has no comment beside it")
    return {key: " ".join(lines) for key, lines in comments.items()}


def _section(name: str, field: FieldInfo, comments: dict[str, str]) -> str:
    if name == "catalogs":
        model: type[BaseModel] = CatalogSettings
        keys, shown = "catalogs.lake", "catalogs.<name>"
    else:
        assert isinstance(field.annotation, type)
        model, keys, shown = field.annotation, name, name
    rows = [
        f"| `{shown}.{key}` | {_kind(one)} | {_default(key, one)} | {_cell(comments[f'{keys}.{key}'])} |"
        for key, one in model.model_fields.items()
    ]
    table = "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows])
    return f"## {name}\n\n{comments[name]}\n\n{table}\n"


def _kind(field: FieldInfo) -> str:
    """The type in a few words, with its bounds."""
    kinds = [part for part in (get_args(field.annotation) or (field.annotation,)) if part is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    if get_origin(field.annotation) is dict:
        return "map of texts"
    words = {str: "text", SecretStr: "secret text", bool: "true or false", int: "whole number", float: "number"}
    return ", ".join([words[kinds[0]], *_bounds(field)])


def _bounds(field: FieldInfo) -> Iterator[str]:
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    for bound in field.metadata:
        for name, words in signs.items():
            if (value := getattr(bound, name, None)) is not None:
                yield f"{words} {value}"


def _default(key: str, field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    shown = f"`{json.dumps(value) if not isinstance(value, str) or not value else value}`"
    return f"{shown} ({_size(value)})" if key.endswith("_bytes") else shown


def _size(count: int) -> str:
    """Bytes in the largest unit in which they are a whole number."""
    power = min(((count & -count).bit_length() - 1) // 10, 4)
    return f"{count >> 10 * power} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _cell(words: str) -> str:
    """Words for a table; what looks like an HTML tag is none."""
    return words.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
