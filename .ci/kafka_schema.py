"""Generates `pyreplog/kafka/wire/schema.py` and `messages.py` from Kafka's message definitions.

    python .ci/kafka_schema.py FOLDER

FOLDER has the JSON files of `clients/src/main/resources/common/message`; the jar of kafka-clients has them below
`common/message` as well. The generated files name the release. Run ruff format behind it.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RELEASE = "4.1.0"

# What the listener announces (partitions.md, chapter 4); the second range: what is served, where it differs.
ANNOUNCED = {
    "Produce": "0-11 3-11", "Fetch": "4-16", "ListOffsets": "1-10", "Metadata": "0-13", "OffsetCommit": "2-9",
    "OffsetFetch": "1-9", "FindCoordinator": "0-5", "JoinGroup": "0-9", "Heartbeat": "0-4", "LeaveGroup": "0-5",
    "SyncGroup": "0-5", "DescribeGroups": "0-6", "ListGroups": "0-5", "SaslHandshake": "0-1", "SaslAuthenticate": "0-2",
    "ApiVersions": "0-4", "CreateTopics": "2-7", "DeleteTopics": "1-6", "DeleteRecords": "0-2",
    "CreatePartitions": "0-3", "InitProducerId": "0-5", "OffsetForLeaderEpoch": "2-4", "AddPartitionsToTxn": "0-3",
    "AddOffsetsToTxn": "0-4", "EndTxn": "0-4", "TxnOffsetCommit": "0-4", "DescribeConfigs": "1-4",
    "AlterConfigs": "0-2", "IncrementalAlterConfigs": "0-1", "DeleteGroups": "0-2", "ElectLeaders": "0-2",
    "OffsetDelete": "0-0", "DescribeCluster": "0-1", "DescribeProducers": "0-0", "DescribeTransactions": "0-0",
    "ListTransactions": "0-0", "ConsumerGroupHeartbeat": "0-1", "ConsumerGroupDescribe": "0-1",
    "DescribeClientQuotas": "0-1", "AlterClientQuotas": "0-1", "DescribeLogDirs": "1-4", "DescribeAcls": "1-3",
    "CreateAcls": "1-3", "DeleteAcls": "1-3", "AlterPartitionReassignments": "0-0", "ListPartitionReassignments": "0-0",
}  # fmt: skip

NAMES = {"index": "partition_index", "count": "partition_count"}
"""Fields that would hide methods of tuples."""

PYTHON_TYPES = {
    "bool": "bool", "int8": "int", "int16": "int", "int32": "int", "int64": "int", "string": "str", "bytes": "bytes",
    "records": "Records", "uuid": "bytes", "float64": "float",
}  # fmt: skip
ZEROS = {"bool": "False", "string": '""', "bytes": 'b""', "records": "None", "uuid": "ZERO_UUID", "float64": "0.0"}
LAST = 32767

Range = tuple[int, int]


def parse_range(text: str) -> Range | None:
    """Parse `3`, `3-5`, `3+` or `none`."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
    assert match, text
    first = int(match[1])
    return first, LAST if match[2] else int(match[3] or first)


def common(one: Range | None, other: Range | None) -> Range | None:
    """Return the versions that are in both ranges."""
    if one is None or other is None:
        return None
    first, last = max(one[0], other[0]), min(one[1], other[1])
    return (first, last) if first <= last else None


def shown(versions: Range) -> str:
    return f"{versions[0]}-{'' if versions[1] == LAST else versions[1]}"


def snake(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    assert not keyword.iskeyword(words), name
    return NAMES.get(words, words)


@dataclass
class Struct:
    """A class of the generated module."""

    name: str
    about: str
    fields: list[Field]


@dataclass
class Field:
    """A field of a struct. versions: those of the messages that are generated."""

    name: str
    about: str
    kind: str
    array: bool
    versions: Range
    nullable: Range | None
    tag: int | None
    ignorable: bool
    default: str | None
    struct: Struct | None

    @property
    def literal(self) -> str:
        """The default as a Python literal."""
        if self.default == "null":
            return "None"
        if self.array:
            return "()"
        if self.struct:
            return f"{self.struct.name}()"
        if self.default is None or self.default == "":
            return ZEROS.get(self.kind, "0")
        if self.kind == "bool":
            return self.default.capitalize()
        return str(int(self.default, 0))

    @property
    def annotation(self) -> str:
        item = self.struct.name if self.struct else PYTHON_TYPES[self.kind]
        whole = f"Sequence[{item}]" if self.array else item
        return f"{whole} | None" if self.nullable and self.kind != "records" else whole

    def line(self) -> str:
        words = [self.name, ("[]" if self.array else "") + (self.struct.name if self.struct else self.kind)]
        words.append(shown(self.versions))
        words += [f"null {shown(self.nullable)}"] if self.nullable else []
        words += [f"tag {self.tag}"] if self.tag is not None else []
        words += ["ignorable"] if self.ignorable else []
        return " ".join(words)


@dataclass
class Message:
    """A request or a response."""

    api: str
    key: int
    versions: Range
    flexible: Range | None
    struct: Struct
    structs: list[Struct] = field(default_factory=list)


class Reader:
    """Reads one message definition."""

    def __init__(self, path: Path, api: str, versions: Range) -> None:
        text = re.sub(r"(?m)^\s*//.*$", "", path.read_text())
        self._definition = json.loads(text)
        self._api = api
        self._versions = versions
        self._commons = {struct["name"]: struct for struct in self._definition.get("commonStructs", ())}
        self._structs: list[Struct] = []
        valid = parse_range(self._definition["validVersions"])
        assert valid and common(valid, versions) == versions, f"{path.name}: {valid} has not all of {versions}"

    def read(self) -> Message:
        flexible = parse_range(self._definition["flexibleVersions"])
        name = self._definition["name"]
        struct = self._struct(name, "", self._definition["fields"], self._versions)
        return Message(self._api, self._definition["apiKey"], self._versions, flexible, struct, self._structs)

    def _struct(self, name: str, about: str, fields: list[dict[str, Any]], versions: Range) -> Struct:
        struct = Struct(name, about, [])
        for item in fields:
            within = common(parse_range(item["versions"]), versions)
            if within is not None:
                struct.fields.append(self._field(item, within))
        if name not in {other.name for other in self._structs}:
            self._structs.append(struct)
        return struct

    def _field(self, item: dict[str, Any], versions: Range) -> Field:
        kind = item["type"].removeprefix("[]")
        tagged = item.get("taggedVersions")
        assert tagged is None or common(parse_range(tagged), versions) == versions, item
        assert "flexibleVersions" not in item, item
        struct = None
        if kind[0].isupper():
            fields = item.get("fields") or self._commons[kind]["fields"]
            name = kind if kind.startswith(self._api) else self._api + kind
            struct = self._struct(name, item.get("about", ""), fields, versions)
        default = item.get("default")
        return Field(
            snake(item["name"]), item.get("about", ""), kind, item["type"].startswith("[]"), versions,
            common(parse_range(item.get("nullableVersions", "none")), versions),
            item.get("tag") if tagged else None, bool(item.get("ignorable")),
            None if default is None else str(default), struct,
        )  # fmt: skip


def structs_in(struct: Struct) -> Iterator[Struct]:
    yield struct
    for item in struct.fields:
        if item.struct:
            yield from structs_in(item.struct)


def rename_clashes(request: Message, response: Message) -> None:
    """Rename structs of a response that have the name of one of the request, and other fields."""
    names = {struct.name: [item.name for item in struct.fields] for struct in request.structs}
    for struct in [*response.structs, *structs_in(response.struct)]:
        if names.get(struct.name, [item.name for item in struct.fields]) != [item.name for item in struct.fields]:
            struct.name = f"{response.api}Response{struct.name.removeprefix(response.api)}"


def lines_of(struct: Struct, depth: int) -> Iterator[str]:
    for item in struct.fields:
        yield " " * depth + item.line()
        if item.struct:
            yield from lines_of(item.struct, depth + 1)


def schema_text(messages: list[Message]) -> str:
    lines: list[str] = []
    for message in messages:
        flexible = f" flexible {shown(message.flexible)}" if message.flexible else ""
        lines.append(f"{message.struct.name} {message.key} {shown(message.versions)}{flexible}")
        lines += lines_of(message.struct, 1)
    keys = sorted({(message.key, message.api) for message in messages})
    members = [f"    {re.sub(r'(?<=[a-z])(?=[A-Z])', '_', api).upper()} = {key}" for key, api in keys]
    announced = [f"    {key}: ({', '.join(ANNOUNCED[api].split()[0].split('-'))})," for key, api in keys]
    return "\n".join([
        f'"""The messages of Kafka {RELEASE} that the listener speaks. Generated by .ci/kafka_schema.py."""', "",
        "from __future__ import annotations", "", "from enum import IntEnum", "", "",
        "class ApiKey(IntEnum):", '    """The keys of the APIs, with Kafka\'s names and numbers."""', "", *members,
        "", "",
        "ANNOUNCED: dict[int, tuple[int, int]] = {", *announced, "}",
        '"""The lowest and the highest version of each API that ApiVersions answers."""', "",
        'SCHEMA = """\\', *lines, '"""',
        '"""One message a block: name, API key, versions; then a field a line: name, type, versions.', "",
        "Fields of a struct are indented. null: versions in which the field may be null; tag: it is tagged, with this",
        "tag; ignorable: a version that lacks the field may drop its value. A type with a capital is a class of",
        '`messages`."""', "",
    ])  # fmt: skip


def class_text(struct: Struct) -> str:
    lines = ["", "", f"class {struct.name}(NamedTuple):"]
    lines += [f"    {item.name}: {item.annotation} = {item.literal}" for item in struct.fields]
    return "\n".join(lines if struct.fields else [*lines, "    pass"])


def messages_text(messages: list[Message]) -> str:
    """Annotations are evaluated: typing would compile each string, which takes an eighth of the import."""
    structs: dict[str, Struct] = {}
    for message in messages:
        for struct in message.structs:
            other = structs.setdefault(struct.name, struct)
            assert [item.name for item in other.fields] == [item.name for item in struct.fields], struct.name
    return "\n".join([
        f'"""Requests and responses of Kafka {RELEASE}, one class for all versions.', "",
        "A field that a version does not have is its default. Kafka's documentation describes the fields. A decoded",
        "array is a tuple; a tuple or a list can be encoded. A uuid is 16 bytes. Generated by .ci/kafka_schema.py.",
        '"""', "", "from collections.abc import Sequence",
        "from typing import NamedTuple, TypeAlias", "",
        "Records: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes | memoryview] | None",
        '"""Record batches. Decoded ones are a view of the request; what is encoded may be in several pieces."""', "",
        "ZERO_UUID = bytes(16)", *[class_text(struct) for struct in structs.values()], "", "",
        "_ALL: tuple[type, ...] = (", *[f"    {name}," for name in structs], ")",
        "CLASSES = {each.__name__: each for each in _ALL}", "",
    ])  # fmt: skip


def main() -> None:
    (folder,) = map(Path, sys.argv[1:])
    target = Path(__file__).resolve().parents[1] / "pyreplog" / "kafka" / "wire"
    messages = []
    for api, ranges in ANNOUNCED.items():
        served = parse_range(ranges.split()[-1])
        assert served is not None
        request, response = (
            Reader(folder / f"{api}{kind}.json", api, served).read() for kind in ("Request", "Response")
        )
        rename_clashes(request, response)
        messages += [request, response]
    messages.sort(key=lambda message: message.key)
    (target / "schema.py").write_text(schema_text(messages))
    (target / "messages.py").write_text(messages_text(messages))


if __name__ == "__main__":
    main()
