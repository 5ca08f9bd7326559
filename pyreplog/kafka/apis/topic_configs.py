"""Settings of topics by Kafka's names: those that brokers support; all others are refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyreplog.errors import ConfigError
from pyreplog.partition.metadata.topic_metadata import TopicMetadata


class _Setting(NamedTuple):
    field: str
    parse: Callable[[str], Any]
    default: Any


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


SETTINGS: Mapping[str, _Setting] = {
    "min.insync.replicas": _Setting("min_isr", int, 1),
    "unclean.leader.election.enable": _Setting("unclean_election", _flag, False),
    "requires.sync": _Setting("requires_sync", _flag, False),
}


def parse_settings(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return settings as arguments of `create_topic`. Raises ConfigError: one is unknown, or malformed."""
    values = {}
    for name, text in texts.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"unknown setting {name[:80]!r} of a topic; there are {', '.join(SETTINGS)}")
        try:
            values[setting.field] = setting.default if text is None else setting.parse(text)
        except ValueError as error:
            raise ConfigError(f"{name}: found {str(text)[:80]!r}") from error
    return values


def describe_settings(topic: TopicMetadata) -> dict[str, tuple[str, bool]]:
    """Return the text of each setting, and whether it is the default, by name."""
    described = {}
    for name, setting in SETTINGS.items():
        value = getattr(topic, setting.field)
        described[name] = (str(value).lower(), value == setting.default)
    return described
