"""The one door for everything outside a run: `open` gives `Runs`, and each of them is a `Run`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from html import escape
from typing import TYPE_CHECKING

from . import decisions, display
from .errors import (
    JournalCorruptionError,
    KassetteError,
    RunBusyError,
    StorageError,
    UnknownRunError,
)
from .journal import read
from .run import Run
from .shelf import many
from .state import RunState
from .storage import Storage, Token, open_storage
from .tabled import Tabled
from .text import natural

if TYPE_CHECKING:
    import os

    from .notebook.compare import Comparison
    from .notebook.view import View


def open(storage: Storage | str | os.PathLike[str] | None = None) -> Runs:
    """Open the runs of a storage.

    Args:
        storage: A path, a URL or a storage; by default ``$KASSETTE_STORAGE``, else
            ``file:.kassette``. A folder that does not exist yet has no runs.
    """
    return Runs(open_storage(storage))


def compare(
    runs: builtins.list[Run],
    *,
    base: int | str | Run = 0,
    score: Callable[[Run], object] | None = None,
) -> Comparison:
    """Align runs step by step.

    Args:
        runs: The runs, two or more.
        base: The one that the others are compared with: its index, its id or the run itself.
        score: Gives a run what it is ranked by: True or False, a number (more is better), a pair
            such as (passed, all), or None. By default the ``outcome=`` of its workflow, where
            that is loaded: a score is not in the journal. A run whose scoring raises has none,
            and the comparison says why.

    Returns:
        An object that shows itself; ``.frame()`` gives pandas, ``.figure()`` plotly.

    Raises:
        KassetteError: Fewer than two runs, or one is damaged; ``base`` is none of them; ``score``
            is no function, or gives what is no score.
    """
    from .notebook.compare import Comparison

    return Comparison(runs, base, score)


class Runs(Tabled, Mapping[str, "Run"]):
    """The runs of one storage by id, in the order in which they began."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._known: dict[str, Run] = {}
        self._sources: dict[str, str | None] = {}

    def __getitem__(self, run_id: str) -> Run:
        run = self.look(run_id)
        if not run.exists:
            read(self.storage, run_id)  # raises with the facts
        return run

    def listed(self) -> Iterator[Run]:
        """Yield every listed run by id; it may be damaged when looked at.

        What has changed since the last look is read, side by side where that takes network time,
        and while a run is yielded looks at it cost nothing.
        """

        def look(listed: tuple[str, Token]) -> tuple[Run, RunState | None]:
            run = self.look(listed[0])
            try:
                return run, run.fold_at(listed[1])
            except KassetteError:
                return run, None  # whoever looks at it is told

        for run, folded in many(self.storage, look, self.storage.tokens()):
            with run.still(folded) if folded is not None else nullcontext():
                yield run

    def forks_of(self, run_id: str) -> Iterator[Run]:
        """Yield the runs that were forked from this one, ``.2`` first, without damaged ones."""

        def source(listed: str) -> str | None:
            if listed not in self._sources:
                # Line 0 never changes, so it is read once.
                try:
                    source = self.look(listed).source
                except KassetteError:
                    return None
                self._sources[listed] = source.run_id if source else None
            return self._sources[listed]

        listed = sorted(self.storage.list(), key=natural)
        for name, parent in zip(listed, many(self.storage, source, listed), strict=True):
            if parent == run_id:
                yield self.look(name)

    def __iter__(self) -> Iterator[str]:
        def began(run_id: str) -> tuple[str, str]:
            try:
                return self.look(run_id).journal.opening.timestamp, run_id
            except (JournalCorruptionError, UnknownRunError):
                return "~", run_id  # damaged ones come last; they are still there to be seen

        return iter(
            [run_id for _, run_id in sorted(many(self.storage, began, self.storage.list()))]
        )

    def __len__(self) -> int:
        return sum(1 for _ in self.storage.list())

    def __contains__(self, run_id: object) -> bool:
        return isinstance(run_id, str) and run_id in self.storage.list()

    def __repr__(self) -> str:
        try:
            return f"<{len(self)} runs in {self.storage.url}>"
        except StorageError as problem:
            return f"<runs in {self.storage.url}: {problem}>"

    def _ipython_display_(self) -> None:
        if not display.show("runs", self):
            raise NotImplementedError

    def _repr_html_(self) -> str:
        try:
            return self.html()
        except StorageError as problem:
            return f"<pre>{escape(str(problem))}</pre>"

    def look(self, run_id: str) -> Run:
        """Return a run without reading it: it may be damaged, or not have begun."""
        return self._known.setdefault(run_id, Run(self.storage, run_id, self))

    def recover(self) -> dict[str, str]:
        """Go on with what a dead process left behind, where the code is loaded here.

        Interrupted and ready runs are replayed, and those that the code fits go on in the
        background; runs whose question nobody answered in
        time are cancelled. Forks that were never started, and runs that another session holds,
        are passed over.

        Returns:
            Run id → what became of it: ``goes on``, ``cancelled``, or why it stays as it is.
        """
        found: dict[str, str] = {}
        for run in list(self.listed()):
            try:
                run.fold()
            except KassetteError:
                continue  # damaged: not ours to repair
            try:
                told = decisions.recover(run)
            except RunBusyError:
                continue
            except KassetteError as problem:
                told = str(problem)
            if told is not None:
                found[run.run_id] = told
        return found

    def _tabled(self) -> Iterator[Run]:
        return self.listed()

    def html(self) -> str:
        """Return a static picture of the storage: text and a table, everything escaped."""
        from .notebook import html

        return html.runs(self)

    def panel(self) -> View:
        """Return the bare widget of the browser of runs."""
        from .notebook import view

        return view.of_runs(self)
