"""What a run looks like: text, panel, figures, a notebook of its own. Imported when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from .model import RunModel, RunsModel
from .tabled import Tabled

if TYPE_CHECKING:
    import os

    import plotly.graph_objects as go

    from .notebook.compare import Comparison
    from .notebook.view import View


class _Placed(RunModel, Protocol):
    """A run among its storage's runs."""

    _runs: RunsModel


class Shown(Tabled):
    """The views of a run that are made of its journal alone."""

    def _tabled(self: RunModel) -> Iterable[RunModel]:
        _ = self.journal  # a damaged one raises; among many it is named in a warning
        return [self]

    def html(self: RunModel) -> str:
        """Return a static picture of the run: text and a table, everything escaped."""
        from .notebook import html

        return html.run(self)

    def panel(self: _Placed) -> View:
        """Return the bare widget of this run's panel."""
        from .notebook import view

        return view.of_run(self, self._runs)

    def figure(self: RunModel, axis: Literal["work", "wall", "steps"] | None = None) -> go.Figure:
        """Return the timeline as a plotly figure: a lane a branch, one trace a kind of step.

        Args:
            axis: ``"work"``: working time, with waits and gaps folded; ``"wall"``: all time;
                ``"steps"``: the steps in order. By default working time where most steps have
                their start recorded, else the steps.

        Returns:
            At most 2,000 bars; in a longer run neighbours of one kind share a bar. Seconds on the
            axis. Texts of the journal are escaped.

        Raises:
            JournalCorruptionError: The journal is damaged.
            KassetteError: No such axis, or no times are recorded for it.
        """
        from .notebook import figures

        return figures.timeline(self, axis)

    def family(self: _Placed) -> go.Figure:
        """Return the run's fork family as a plotly figure: a tree from its oldest source on.

        Returns:
            At most 200 runs with their states, each marked with where it parted from its source. A
            source that is not in the storage any more, or damaged, stands in it by its id.
        """
        from .notebook import family

        return family.tree(self, self._runs)

    def to_notebook(self: _Placed, path: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Write a notebook that documents the run and ends with cells that continue or fork it.

        One cell a step, with its recorded value as the cell's output; lineage, decisions and the
        timeline. What the journal says stands in it as plain text only.

        Args:
            path: The file, ``report.ipynb``.
            overwrite: Replace what is there.

        Returns:
            The path. The file appears in one piece.

        Raises:
            KassetteError: There is a file already, or the path is none; nothing was written.
            JournalCorruptionError: The journal is damaged.
        """
        from .notebook import report

        return report.write(self, self._runs, path, overwrite=overwrite)

    def diff(self: RunModel, other: RunModel) -> Comparison:
        """Align this run with another one; see `kassette_nb.compare`."""
        from .notebook.compare import Comparison

        return Comparison([self, other])
