"""A thresholds file that is an attack or an accident: one line that names it, status 4, nothing measured or stored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from regress.errors import EXIT_USAGE
from tests.acceptance.conftest import Theatre

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True))
FAULTS: Mapping[str, tuple[bytes, str]] = {
    "a bomb of anchors": (LAUGHS.encode(), "thresholds.yaml:1: anchor or alias 'a'; accepted: plain YAML"),
    "an anchor inside itself": (b"schema: 1\ncases: &c [*c]\n", "thresholds.yaml:2: anchor or alias 'c'"),
    "merge keys": (b"x: &x {y: 1}\ngate: {<<: *x}\n", "thresholds.yaml:1: anchor or alias 'x'"),
    "ten megabytes": (b"# padding\n" * 1_000_000, "thresholds.yaml: 10000000 bytes; accepted: at most 1000000 bytes"),
    "a tag that makes objects": (b"schema: 1\ngate: !!python/object/apply:os.system ['touch pwned']\n",
                                 "thresholds.yaml:2: tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
    "a tag nobody knows": (b"schema: 1\ngate: !vault {a: 1}\n", "thresholds.yaml:2: tag '!vault'"),
    "nesting without end": (b"a: " + b"[" * 100_000, "thresholds.yaml:1: nested deeper than 20 levels"),
    "no text": (b"\xff\xfe\x00schema", "thresholds.yaml: not UTF-8 text"),
    "a byte that is no character": (b"schema: 1\n\x00\n", "thresholds.yaml: not YAML: unacceptable character #x0000"),
    "nothing": (b"", "thresholds.yaml: no mapping at the top"),
    "two documents": (b"schema: 1\n---\nschema: 1\n", "thresholds.yaml:2"),
    "another schema": (b"schema: 99\n", "thresholds.yaml:1: schema"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_refused_with_its_place(theatre: Theatre, fault: str) -> None:
    content, said = FAULTS[fault]
    (theatre.folder / "thresholds.yaml").write_bytes(content)
    done = theatre.gate()
    assert done.ret == EXIT_USAGE
    (line,) = [text for text in done.stderr.lines if text]
    assert line.startswith("ERROR: comm-regress: ")
    assert said in line
    assert len(line) < 1000
    assert not (theatre.folder / ".comm-regress").exists()
    assert not (theatre.folder / "pwned").exists()


def test_a_folder_in_its_place(theatre: Theatre) -> None:
    (theatre.folder / "elsewhere.yaml").mkdir()
    done = theatre.gate("--comm-regress-config=elsewhere.yaml")
    assert done.ret == EXIT_USAGE
    done.stderr.fnmatch_lines(["ERROR: comm-regress: *elsewhere.yaml: Is a directory; accepted: a readable *"])
