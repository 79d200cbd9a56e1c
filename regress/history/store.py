"""The one door of this room: `open_history` and what can be asked of a `History`, wherever it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regress.errors import HistoryError, RecordError
from regress.history import index
from regress.history.ancestry import ancestry, by_ancestry
from regress.history.backend import Backend
from regress.history.index import RunRow, Window
from regress.history.runs import AcceptedMark, Entry, Problem, checked, with_marks
from regress.record import Acceptance, Run, without_samples

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_FOLDER = ".comm-regress"
ItemT = TypeVar("ItemT")

_RUNS_OUT_OF_TURN = 500
"""How many newer runs an old commit, measured late, may be found behind."""

_RUNS_OF_ANY_BRANCH = 100
"""Newest runs among a baseline's candidates whatever their branch: attempts and undecided runs in a row are counted."""

_FIRST_RUNS = 20
"""Oldest runs of the main branch among the candidates: the first may have been partial or invalid."""

SERVER_SCHEMES = ("postgresql://", "postgres://")


def open_history(url: str = DEFAULT_FOLDER, *, repository: Path | None = None, compress: bool = False) -> History:
    """The history at a folder path or a `postgresql://` URL; made when it is not there yet.

    repository: where git can be asked how commits relate; None orders by time. compress: gzip new run files.
    Raises HistoryError when the place cannot be opened, made or written.
    """
    if url.startswith(SERVER_SCHEMES):
        from regress.history.server import ServerBackend

        return History(ServerBackend(url), repository)
    if "://" in url:
        raise HistoryError(f"a history cannot live at {url!r}", accepted="a folder, or postgresql://...",
                           next_step="for an object store, move runs with `regress history export` and `import`")
    from regress.history.folder import FolderBackend

    return History(FolderBackend(Path(url).expanduser(), compress), repository)


class History:
    """All runs that were ever stored in one place. Use it as a context manager, or close it."""

    def __init__(self, backend: Backend, repository: Path | None = None) -> None:
        self._backend = backend
        self._repository = repository
        self._order: dict[str, int] = {}
        self._asked: frozenset[str] = frozenset()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index or the server."""
        self._backend.close()

    @property
    def location(self) -> str:
        """Where this history is, fit to be shown: a password is never part of it."""
        return self._backend.location

    def add(self, run: Run) -> str:
        """Store a run and return where. The same run id and attempt again changes nothing.

        Raises HistoryWriteError when it could not be stored, naming the place where its JSON was kept instead.
        """
        return self._backend.add(checked(run, f"run {run.run_id!r}"))

    def runs(self, limit: int | None = None, *, environment: str | None = None, main_only: bool = False,
             since: str | None = None, before: str | None = None, accepted_only: bool = False,
             samples: bool = False) -> Iterator[Run]:
        """Runs newest first, one at a time; by git ancestry where the repository is at hand, else by time.

        environment: a fingerprint. since, before: ISO 8601, since included and before excluded, by start of the run.
        samples: False answers from the index, with every statistic but no raw samples; True reads the stored runs.
        """
        marks = self._marks()
        window = Window(environment, main_only, since, before, accepted=marks if accepted_only else None)
        yield from self._readable(self.rows(window, limit), marks, samples)

    def candidates(self, environment: str, limit: int) -> Iterator[Run]:
        """The runs in an environment that a baseline is chosen from, without samples; newest first, in history's order.

        The newest `limit` of the main branch, the newest `limit` that were accepted, the first ones of the main branch,
        however old, and the newest of any branch: what others measured since, elsewhere or for their branches, pushes
        nothing out.
        """
        self._backend.sync()
        marks, main = self._marks(), Window(environment, main_only=True)
        wanted = ((main, limit), (Window(environment, accepted=marks), limit),
                  (Window(environment), _RUNS_OF_ANY_BRANCH))
        with self._reading() as connection:
            groups = [index.run_rows(connection, window, self._looked_at(count)) for window, count in wanted]
            first = index.run_rows(connection, main, _FIRST_RUNS, oldest_first=True)
        by_time = sorted({*first, *chain(*groups)}, key=lambda row: (row.started_at, row.run_id, row.attempt))
        ordered = self._arranged(by_time[::-1], lambda row: row.commit)
        chosen = {*first}
        for group, (_, count) in zip(map(set, groups), wanted, strict=True):
            chosen.update(islice((row for row in ordered if row in group), count))
        yield from self._readable([row for row in ordered if row in chosen], marks, samples=False)

    def oldest_first(self) -> Iterator[Run]:
        """Every run with its samples, one at a time, in the order to move them elsewhere."""
        yield from self._readable(self.rows(Window())[::-1], self._marks(), samples=True)

    def latest(self, samples: bool = False) -> Run | None:
        """The newest run, or None in an empty history."""
        return next(self.runs(1, samples=samples), None)

    def get(self, run_id: str) -> Run:
        """The run whose id is or begins with `run_id`, last attempt, with its samples.

        Raises HistoryError when there is none, or when several begin so.
        """
        row = self._find(run_id)
        return self._run(row, self._marks(), samples=True)

    def rows(self, window: Window, limit: int | None = None) -> list[RunRow]:
        """What the index knows of the runs of a window, newest first; at most `limit` of them.

        With a limit, ancestry is looked at among that many runs and 500 more by time.
        """
        self._backend.sync()
        with self._reading() as connection:
            found = index.run_rows(connection, window, self._looked_at(limit))
        return self._arranged(found, lambda row: row.commit)[:limit]

    def series(self, case: str, metric: str, *, environment: str | None = None, main_only: bool = False,
               since: str | None = None, before: str | None = None) -> pd.DataFrame:
        """One metric of one case over all runs of the window, oldest first; columns in `frames.SERIES_COLUMNS`."""
        from regress.history import frames

        self._backend.sync()
        window = Window(environment, main_only, since, before)
        with self._reading() as connection:
            return frames.series(connection, window, case, metric,
                                 lambda lines: self._arranged(lines, lambda line: line[2]))

    def medians(self, last: int = 200, *, environment: str | None = None, main_only: bool = False) -> pd.DataFrame:
        """Medians over launches of every metric of every case in the last runs, oldest first.

        One line for each run (index: run id and attempt), one column for each case and metric; NaN where not measured.
        """
        from regress.history import frames

        rows = self.rows(Window(environment, main_only), last)
        with self._reading() as connection:
            return frames.medians(connection, rows)

    def accept(self, run_id: str, reason: str, who: str, when: str, cases: Sequence[str] | None = None) -> Run:
        """Make a stored run the anchor for these cases (all where None); the run itself stays as it is.

        Raises HistoryError for an unknown run, an unknown case or an empty reason.
        """
        run = self.get(run_id)
        there = sorted({outcome.case.id for launch in run.launches for outcome in launch.outcomes})
        unknown = sorted(set(cases or ()) - set(there))
        if unknown:
            raise HistoryError(f"run {run.run_id} has no case {', '.join(unknown)}", accepted=", ".join(there))
        if not reason.strip():
            raise HistoryError("an acceptance without a reason", accepted="one sentence that says why")
        mark = Acceptance(reason, who, when, None if cases is None else tuple(sorted(set(cases))))
        self._backend.mark(AcceptedMark(run.run_id, run.attempt, mark))
        return with_marks(run, [mark])

    def problems(self) -> list[Problem]:
        """Stored things that cannot be read, each with the reason. They are left alone."""
        self._backend.sync()
        with self._reading() as connection:
            found = index.problems(connection)
        return found + self._backend.marks()[1]

    def reindex(self) -> int:
        """Build the index again from the stored runs; returns how many there are."""
        self._backend.sync(rebuild=True)
        return len(self.rows(Window()))

    def prune(self, keep_samples: int) -> int:
        """Drop the raw samples of all but the newest runs; returns the bytes freed.

        Statistics stay, and so does everything of an accepted run.
        """
        if keep_samples < 0:
            raise HistoryError(f"keep the samples of {keep_samples} runs", accepted="0 or more")
        marks = self._marks()
        old = self.rows(Window())[keep_samples:]
        return sum(self._backend.drop_samples(row.location) for row in old
                   if row.has_samples and not row.accepted and (row.run_id, row.attempt) not in marks)

    def refresh(self) -> None:
        """Look at what others have stored since the last question; questions do so by themselves."""
        self._backend.sync()

    def remember(self, run: Run) -> bool:
        """Store a run that came from another history; False where it was there already.

        An acceptance that it brings is kept in both cases. `refresh` first, once for many runs.
        """
        identity: dict[str, index.Bound] = {"run_id": run.run_id, "attempt": run.attempt}
        with self._reading() as connection:
            there = connection.rows("SELECT location FROM comm_regress_run WHERE run_id = :run_id "
                                    "AND attempt = :attempt", identity)
        if not there:
            self.add(run)
        elif run.accepted is not None:
            stored = self._backend.load(str(there[0][0])).accepted
            if run.accepted != with_marks(replace(run, accepted=stored),
                                          self._marks().get((run.run_id, run.attempt), ())).accepted:
                self._backend.mark(AcceptedMark(run.run_id, run.attempt, run.accepted))
        return not there

    def _find(self, prefix: str) -> RunRow:
        found = self.rows(Window(id_prefix=prefix))
        exact = [row for row in found if row.run_id == prefix] or found
        ids = sorted({row.run_id for row in exact})
        if len(ids) != 1 or not prefix:
            seen = f"{len(ids)} runs begin with {prefix!r}: {', '.join(ids[:5])}" if ids else f"no run {prefix!r}"
            raise HistoryError(seen, where=self.location, accepted="a run id, or the beginning of exactly one",
                               next_step="`regress history list` shows them")
        return max(exact, key=lambda row: row.attempt)

    def _readable(self, rows: Sequence[RunRow], marks: dict[tuple[str, int], list[Acceptance]],
                  samples: bool) -> Iterator[Run]:
        """The runs of these rows; one that was damaged since it was indexed is left out and shows under problems."""
        for row in rows:
            try:
                run = self._run(row, marks, samples)
            except RecordError:
                continue
            yield run

    def _run(self, row: RunRow, marks: dict[tuple[str, int], list[Acceptance]], samples: bool) -> Run:
        if samples:
            try:
                run = self._backend.load(row.location)
            except RecordError as error:
                with self._backend.database.writing() as connection:
                    index.forget(connection, [row.location])
                    # No file is -1 bytes long, so the next look at the folder reads it again.
                    index.put_problem(connection, Problem(row.location, error.text), Entry(row.location, -1, -1))
                raise
        else:
            try:
                with self._reading() as connection:
                    run = index.slim_run(connection, row)
            except RecordError:  # the index holds copies: what is damaged there may be whole where the run lies
                run = without_samples(self._backend.load(row.location))
        return with_marks(run, marks.get((row.run_id, row.attempt), ()))

    def _marks(self) -> dict[tuple[str, int], list[Acceptance]]:
        found: dict[tuple[str, int], list[Acceptance]] = {}
        for mark in self._backend.marks()[0]:
            found.setdefault((mark.run_id, mark.attempt), []).append(mark.acceptance)
        return found

    def _looked_at(self, limit: int | None) -> int | None:
        """How many runs by time hold the first `limit` by ancestry."""
        return limit if limit is None or self._repository is None else limit + _RUNS_OUT_OF_TURN

    def _arranged(self, newest_first: list[ItemT], commit: Callable[[ItemT], str | None]) -> list[ItemT]:
        """By git ancestry where the repository is at hand, else as they came."""
        if self._repository is None:
            return newest_first
        shas = frozenset(sha for item in newest_first if (sha := commit(item)))
        if not shas <= self._asked:
            self._order, self._asked = ancestry(self._repository, shas | self._asked), shas | self._asked
        return by_ancestry(newest_first, commit, self._order)

    @contextmanager
    def _reading(self) -> Iterator[index.Connection]:
        with self._backend.database.reading() as connection:
            yield connection
