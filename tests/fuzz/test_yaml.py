"""Whatever stands in a thresholds file, it is read or refused with an error that says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from regress.catalog import open_shelves
from regress.config import load_config, packaged_thresholds
from regress.errors import ConfigError
from tests.fuzz.hostile import bounded, damaged

GOOD = packaged_thresholds().read_bytes()
PIECES = ("schema: 1\n", "gate: ", "cases:\n", "- ", "  ", "\n", "? ", ": ", "[", "]", "{", "}", "*a", "&a ",
          "!!python/", "!!int ", "<<: ", "'", '"', "|\n", ">-\n", "#", "%YAML 1.1\n", "---\n", "...\n",
          "2024-99-99", "0b_", "0x_", "1:99:99", ".inf", ".nan", "~", "=", "1e400",
          "allreduce", "sizes", "workload: ", "\t", "\0", "\ufeff",
          "\u2028", "\ud7ff", "9" * 5000)
CATALOG = open_shelves().catalog()


def read(folder: Path, content: bytes) -> None:
    path = folder / "thresholds.yaml"
    path.write_bytes(content)
    with bounded():
        try:
            load_config(path, CATALOG)
        except ConfigError as error:
            assert str(path) in error.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yaml")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(GOOD))
def test_a_damaged_file(folder: Path, content: bytes) -> None:
    read(folder, content)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
@example("schema: 1\n? [a]\n: b\n")
@example("schema: 1\ngate: 2024-99-99\n")
@example("schema: 1\ngate: 0b_\n")
@example("schema: " + "9" * 5000)
@example("schema: 1\n~: 1\n")
@example("schema: 1\n1: 2\n")
@example("schema: 1\ncases: [{workload: allreduce, sizes: [1e400]}]\n")
@example("schema: 1\ngate: {budget: .nan}\n")
@example("schema: 1\ngate: {budget: 1e400}\n")
@example("=")
@example("schema: 1\n<<: {gate: {}}\n")
def test_pieces_of_yaml_in_any_order(folder: Path, text: str) -> None:
    read(folder, text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 50_000, "a:\n" + "".join(
    " " * depth + "a:\n" for depth in range(1, 900)), "&a [" + "*a," * 1000, "a: &a [*a]"])
def test_nesting_without_end_and_references_to_oneself(folder: Path, text: str) -> None:
    path = folder / "deep.yaml"
    path.write_text(text)
    with bounded(), pytest.raises(ConfigError):
        load_config(path, CATALOG)
