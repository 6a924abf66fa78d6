"""YAML files whose end can be told, so that one that was cut short is noticed."""

from pathlib import Path

import yaml  # type: ignore[import-untyped]


def read_yaml(path: Path) -> object:
    """What a YAML file holds. One that was cut short may be YAML too: where `---` begins it, `...` has to end it."""
    text = path.read_text(encoding="utf-8")
    if text.startswith("---") and not text.endswith("\n...\n"):
        raise ValueError("it is cut short: the line `...` at its end is missing")
    return yaml.safe_load(text)


def write_yaml(content: object) -> str:
    """Content as YAML whose end can be told."""
    return str(yaml.safe_dump(content, sort_keys=False, explicit_start=True, explicit_end=True))
