"""A run's files as its journal recorded them: ``run.workspace``."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from .aside import Aside
from .declared import Workspace
from .entries import AnyEntry, Step, Suspend
from .errors import WorkspaceError
from .journal import Journal, read
from .kept import check_kept, home
from .lease import acquire_blocking
from .noted import at_cut, begun_in, commit_of, latest
from .occupied import Occupied
from .places import tree_of
from .snapshots import Change, Snapshots
from .state import Events
from .storage import Storage
from .workspace import changes_between, watch

#: Where in a run: behind a step, by its id; None is before the first step.
Place = str | None


class Files:
    """The files of one run at its steps. Made by `kassette_nb.run.Run.workspace`.

    Args:
        storage: Where the run is.
        journal: The run's.
        declared: What its workflow says of the directory, if that is loaded.
    """

    def __init__(self, storage: Storage, journal: Journal, declared: Workspace | None) -> None:
        self._storage = storage
        self._journal = journal
        self._declared = declared
        self._snapshots = Snapshots(home(storage))

    def __repr__(self) -> str:
        return f"<files of run {self._journal.run_id!r}: {len(self.steps())} steps with a snapshot>"

    @property
    def path(self) -> Path | None:
        """The directory that the run works in; None where its journal names none.

        An old journal may name it only relative to a directory that nobody knows.
        """
        return tree_of(self._storage, self._journal.run_id, self._journal.entries)

    def steps(self) -> list[str]:
        """Return the ids of the steps that have a snapshot, in order."""
        return [e.step_id for e in self._journal.entries if isinstance(e, Step) and e.workspace]

    def commit(self, step: Place = None) -> str:
        """Return the snapshot behind a step, or that before the first step.

        Raises:
            WorkspaceError: There is none; names steps that have one.
        """
        entries = self._journal.entries
        cut = _behind(entries, step) if step is not None else 1
        if cut is None:
            steps = self.steps()
            near = ", ".join(["…"] * (len(steps) > 8) + steps[-8:]) or "none has"
            raise WorkspaceError(
                f"run {self._journal.run_id!r} has no step {step!r} recorded; with a snapshot "
                f"are: {near}."
            )
        found = at_cut(self._journal.run_id, entries, cut, "show")
        if found is None:
            raise WorkspaceError(
                f"run {self._journal.run_id!r} has no workspace: no files were kept with it."
            )
        check_kept(self._storage, self._journal.run_id, found, entries, "show")
        return found

    def last(self) -> str | None:
        """Return the newest snapshot, or None for a run without a workspace."""
        return latest(self._journal.entries)

    def first(self) -> str | None:
        """Return the oldest snapshot, which is of the files before the first step."""
        return next(filter(None, map(commit_of, self._journal.entries)), None)

    def changes(self, before: Place, after: Place) -> list[Change]:
        """Return the files that differ between two steps."""
        return self.between(self.commit(before), self.commit(after))

    def diff(self, before: Place, after: Place, path: str | None = None) -> str:
        """Return how the files differ between two steps, as a unified diff.

        Args:
            before: A step's id: the files behind it. None: those before the first step.
            after: The same.
            path: Only this file.
        """
        return self._snapshots.diff(self.commit(before), self.commit(after), path)

    def between(self, before: str, after: str) -> list[Change]:
        """Return the files that differ between two snapshots of this storage."""
        return self._snapshots.changes(before, after)

    def difference(self, before: str, after: str) -> str:
        """Return how two snapshots of this storage differ, as a unified diff."""
        return self._snapshots.diff(before, after)

    def checkout(
        self,
        step: Place,
        directory: str | os.PathLike[str],
        *,
        snapshot: str | None = None,
    ) -> Path:
        """Write the files behind a step into a directory of their own, byte for byte.

        Args:
            step: The step's id; None: the files before the first step.
            directory: Not there yet, or empty.
            snapshot: Write this one, whatever the step: what ``restore`` found and kept.

        Returns:
            The directory, absolute. If the tree was a git repository, this is one, with the same
            HEAD, branch and commits. If it was none, git that is called there finds the
            repository that the directory lies in, if it lies in one.

        Raises:
            WorkspaceError: The directory has something in it, or there is no snapshot.
        """
        place = Path(directory).absolute()
        commit = self.commit(step) if snapshot is None else self._known(snapshot)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise WorkspaceError(
                f"{place} has something in it; give a directory that is empty or not there yet. "
                "Nothing was written."
            )
        indexes = self._snapshots.home / "index" / ".checkout"
        self._snapshots.write_whole(commit, place, self.path, indexes)
        return place

    def restore(self, snapshot: str | None = None) -> Restored:
        """Put the run's directory back to what the journal recorded last.

        Args:
            snapshot: To this one instead: what an earlier ``restore`` found and kept.

        Returns:
            What differed, and the snapshot in which what was there is kept.

        Raises:
            RunBusyError: A session of this run is at work in it.
            WorkspaceError: Another run is at work in it, or the directory or the snapshot is not
                there, or the journal does not say where the directory is.
        """
        run_id = self._journal.run_id
        hold = acquire_blocking(self._storage, run_id)
        occupied = None
        try:
            self._journal = read(self._storage, run_id)  # as it stays while this holds the run
            wanted, path = self.last(), self._place()
            if wanted is None or path is None or not path.is_dir():
                raise WorkspaceError(
                    f"run {run_id!r} has no directory here that could be put back."
                )
            if snapshot is not None:
                wanted = self._known(snapshot)
            check_kept(self._storage, run_id, wanted, self._journal.entries, "put back")
            occupied = Occupied(path, run_id)
            number = self._journal.last_session + 1
            declared = self._declared or Workspace(str(path))
            tree = watch(self._storage, run_id, path, declared, number)
            found = tree.take(wanted)
            changes = changes_between(self._snapshots, wanted, found)
            tree.put_back(wanted, head=self._journal.opening.source is not None)
            return Restored(path, wanted, found, tuple(changes), tree.aside or None)
        finally:
            if occupied is not None:
                occupied.release()
            hold.release()

    def _known(self, snapshot: str) -> str:
        found = self._snapshots.full(snapshot)
        if found is None:
            raise WorkspaceError(f"there is no snapshot {snapshot!r} in {self._snapshots.home}.")
        return found

    def _place(self) -> Path | None:
        """Return the run's directory, or say why only its workflow knows it."""
        noted = begun_in(self._journal.entries)
        if self.path is not None or noted is None:
            return self.path
        if self._declared is not None:
            return self._declared.directory
        raise WorkspaceError(
            f"the journal of run {self._journal.run_id!r} names its directory as {noted!r} only, "
            "relative to where it was begun. Load its workflow, which declares the directory."
        )


class Restored(msgspec.Struct, frozen=True):
    """What `Files.restore` did.

    ``path`` is the directory, ``snapshot`` what it was put back to, ``kept`` the snapshot of what
    was there, ``changes`` what differed, one line each (``M src/app.py``). What
    was in the way and is in no snapshot (too large, ignored) is in the directory ``aside.place``.
    """

    path: Path
    snapshot: str
    kept: str
    changes: tuple[str, ...]
    aside: Aside | None = None

    def __str__(self) -> str:
        if self.kept == self.snapshot:
            return f"{self.path} was as recorded"
        lines = [f"{self.path} put back; {len(self.changes)} differed", *self.changes]
        again = f"run.workspace.restore({self.kept[:12]!r}) brings it back"
        lines.append(f"what was there is snapshot {self.kept[:12]}: {again}")
        if self.aside is not None:
            lines.append(str(self.aside))
        return "\n".join(lines)

    __repr__ = __str__


def _behind(entries: list[AnyEntry], step_id: str) -> int | None:
    events = Events()
    for entry in entries:
        found = entry.step_id if isinstance(entry, Step) else None
        if isinstance(entry, Suspend):
            found = events.suspended(entry)
        if found == step_id:
            return entry.offset + 1
    return None
