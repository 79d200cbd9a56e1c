from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.errors import TraceInputError
from regress.trace.nsys_privacy import hidden_names, scrub_sqlite, scrubbed_environment

from .fake import make_export

NAMES = st.from_regex(r"(NCCL_|AWS_|HF_|CUDA_|)[A-Z]{1,8}(_TOKEN|_KEY|_PATH|)", fullmatch=True)


@pytest.mark.parametrize("name", [
    "PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "TMPDIR", "CUDA_VISIBLE_DEVICES",
    "NCCL_ALGO", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_RUN_ID", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS",
    "MASTER_ADDR", "RANK", "WORLD_SIZE",
])
def test_what_a_rank_needs_is_kept(name: str) -> None:
    assert scrubbed_environment({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(("name", "value"), [
    ("HF_TOKEN", "x"), ("AWS_SECRET_ACCESS_KEY", "x"), ("GITHUB_TOKEN", "x"), ("MY_OWN", "x"),
    ("NCCL_TOKEN", "x"), ("TORCH_API_KEY", "x"), ("SLURM_JWT", "x"), ("CUDA_PASSWORD", "x"),
    ("TORCH_PROXY", "http://ann:hunter2@proxy:3128"),
])
def test_what_looks_like_a_secret_is_not(name: str, value: str) -> None:
    assert scrubbed_environment({name: value}) == {}
    assert hidden_names({name: value, "PATH": "/bin"}) == (name,)


def test_a_name_asked_for_is_kept() -> None:
    assert scrubbed_environment({"HF_HOME": "/data"}, keep=("HF_HOME",)) == {"HF_HOME": "/data"}


@given(st.dictionaries(NAMES, st.text(max_size=8)), st.sets(NAMES))
def test_every_variable_is_either_kept_as_it_is_or_hidden(environ: dict[str, str], keep: set[str]) -> None:
    kept, hidden = scrubbed_environment(environ, keep), hidden_names(environ, keep)
    assert kept.keys() | set(hidden) == environ.keys()
    assert not kept.keys() & set(hidden)
    assert all(environ[name] == value for name, value in kept.items())


def read(path: Path, query: str) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [str(row[0]) for row in connection.execute(query)]


def test_a_scrubbed_export_holds_no_environment_command_line_host_or_user(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    make_export(path)
    changed = scrub_sqlite(path)
    content = path.read_bytes()
    for word in (b"hunter2", b"secret-host", b"ann", b"torchrun", b"pid_stdout"):
        assert word not in content
    assert changed == 15


def test_what_a_reader_needs_survives(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    make_export(path)
    scrub_sqlite(path)
    assert read(path, "SELECT value FROM StringIds WHERE value != '' ORDER BY id") == ["STEP=3", "a kernel"]
    assert read(path, "SELECT name FROM META_DATA_CAPTURE") == ["PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE"]
    assert read(path, "SELECT name FROM META_DATA_EXPORT") == ["EXPORT_SCHEMA_VERSION"]
    assert read(path, "SELECT name FROM TARGET_INFO_SYSTEM_ENV") == ["Hostname", "NvDriverVersion"]
    assert scrub_sqlite(path) == 0


def test_hosts_are_still_told_apart(tmp_path: Path) -> None:
    hosts: list[str] = []
    for name in ("node-1", "node-2", "node-1"):
        path = tmp_path / f"{len(hosts)}.sqlite"
        make_export(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", (name,))
        scrub_sqlite(path)
        hosts += read(path, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'")
    assert hosts[0] == hosts[2] != hosts[1]
    assert all(host.startswith("host-") for host in hosts)


def test_the_metadata_table_of_2022_is_known(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("CREATE TABLE EXPORT_META_DATA (name TEXT, value TEXT);"
                                 "INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_INPUT_PATH_ABS', '/home/ann/t'),"
                                 "('EXPORT_HOST', 'h'), ('EXPORT_SCHEMA_VERSION', '3.0.0');")
    assert scrub_sqlite(path) == 2
    assert read(path, "SELECT name FROM EXPORT_META_DATA") == ["EXPORT_SCHEMA_VERSION"]


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_text("not a database, but long enough to be read as the header of one" * 10)
    with pytest.raises(TraceInputError, match="cannot take the environment out"):
        scrub_sqlite(path)
    with pytest.raises(TraceInputError):
        scrub_sqlite(tmp_path / "absent.sqlite")
    assert not (tmp_path / "absent.sqlite").exists()
