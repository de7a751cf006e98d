"""What has tables: one run, or all the runs of a storage. pandas is imported when first asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .model import RunModel

if TYPE_CHECKING:
    import pandas as pd


class Tabled:
    """The tables of the runs that `_tabled` gives.

    Reading them runs nothing and imports nothing of a workflow. One run that is damaged raises;
    of a storage's runs the damaged ones are named in a warning and left out.
    """

    def _tabled(self) -> Iterable[RunModel]:
        raise NotImplementedError

    def frame(self) -> pd.DataFrame:
        """Return one row a run; see `kassette_nb.frames.runs_frame`."""
        from . import frames

        return frames.runs_frame(self._tabled())

    def steps(self, *, values: bool = False) -> pd.DataFrame:
        """Return one row a step; see `kassette_nb.frames.steps_frame`."""
        from . import frames

        return frames.steps_frame(self._tabled(), values=values)

    def entries(self) -> pd.DataFrame:
        """Return one row a journal line; see `kassette_nb.frames.entries_frame`."""
        from . import frames

        return frames.entries_frame(self._tabled())

    def sessions(self) -> pd.DataFrame:
        """Return one row a session; see `kassette_nb.frames.sessions_frame`."""
        from . import frames

        return frames.sessions_frame(self._tabled())

    def suspensions(self) -> pd.DataFrame:
        """Return one row a suspension; see `kassette_nb.frames.suspensions_frame`."""
        from . import frames

        return frames.suspensions_frame(self._tabled())

    def usage(self) -> pd.DataFrame:
        """Return one row a run and model; see `kassette_nb.frames.usage_frame`."""
        from . import frames

        return frames.usage_frame(self._tabled())
