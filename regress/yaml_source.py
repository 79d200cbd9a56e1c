"""YAML with places: the data of a file, and the line of every key and item in it.

Plain data only: no tags, no anchors, no duplicate keys, at most 1 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regress.errors import ConfigError

if TYPE_CHECKING:
    import yaml

_LARGEST_FILE = 1_000_000
_DEEPEST = 20

Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """The data of one file; lines: 1-based line of each YAML path; source: how the file is named in messages."""

    data: dict[str, Any]
    lines: dict[Steps, int]
    source: str

    def line(self, *path: str | int) -> int:
        """The line of that path, or of its nearest ancestor that has one; 1 when none has."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1

    def where(self, *path: str | int) -> str:
        """`file:line: a.b[0]`, as messages name a place."""
        text = ""
        for step in path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
        return f"{self.source}:{self.line(*path)}: {text}" if text else f"{self.source}:{self.line(*path)}"


    def at(self, *path: str | int) -> FilePlace:
        """That path of this file as a place, for the loader of options."""
        return FilePlace(self, path)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A YAML path in a file; `str()` of it is `file:line: path`."""

    file: Located
    path: Steps

    def child(self, step: str | int) -> FilePlace:
        """The key or item inside it."""
        return FilePlace(self.file, (*self.path, step))

    def __str__(self) -> str:
        return self.file.where(*self.path)


def read_yaml(path: Path) -> Located:
    """The mapping in a YAML file; ConfigError when there is no such file or it is not plain YAML."""
    import yaml

    source = str(path)
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ConfigError(f"{size} bytes", where=source, accepted=f"at most {_LARGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8")
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _refuse_cleverness(event, source)
            # Before anything that calls itself for each level, and before a scanner that is slow in deep ones.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ConfigError(f"nested deeper than {_DEEPEST} levels", where=f"{source}:{_line(event)}")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=source, accepted="a readable thresholds file",
                          next_step="leave the option out to use the packaged default") from error
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8 text", where=source, accepted="a YAML file in UTF-8") from error
    except yaml.YAMLError as error:
        raise _broken(error, source) from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError("no mapping at the top", where=source, accepted="keys such as schema, gate, cases, metrics")
    lines = dict(_lines(root, (), source))
    try:
        return Located(yaml.load(text, Loader=yaml.SafeLoader), lines, source)
    except (ValueError, yaml.YAMLError) as error:  # what looks like a date, a number or a merge and is none
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"a value that cannot be read: {problem}", where=source, accepted="plain YAML",
                          next_step="put it in quotes if it is meant as text") from error


def _refuse_cleverness(event: yaml.Event, source: str) -> None:
    """Anchors and aliases make a short file long (YAML bombs) and break the line that an error names."""
    line = _line(event)
    anchor = getattr(event, "anchor", None)
    if anchor:
        raise ConfigError(f"anchor or alias {anchor!r}", where=f"{source}:{line}", accepted="plain YAML",
                          next_step="write the value out")
    tag = getattr(event, "tag", None)
    if tag:
        raise ConfigError(f"tag {tag!r}", where=f"{source}:{line}", accepted="plain YAML, no tags")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _broken(error: yaml.YAMLError, source: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source
    problem = " ".join(str(getattr(error, "problem", None) or error).split())  # one of them comes on two lines
    return ConfigError(f"not YAML: {problem}", where=place, accepted="a YAML mapping")


def _lines(node: yaml.Node, path: Steps, source: str) -> Iterator[tuple[Steps, int]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError("a key that is no single word", where=f"{source}:{line}", accepted="plain YAML keys")
            if key.value in seen:
                raise ConfigError(f"key {key.value!r} is given twice", where=f"{source}:{line}",
                                  accepted="every key once", next_step="keep one of the two")
            seen.add(key.value)
            yield (*path, key.value), line
            yield from _lines(value, (*path, key.value), source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), value.start_mark.line + 1
            yield from _lines(value, (*path, index), source)
