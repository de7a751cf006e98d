"""Who a decision is recorded for, when nobody says."""

from __future__ import annotations

import getpass
import os

#: Accounts that say nothing about the person: a container's.
_NOBODY = frozenset({"root", "jovyan"})


def person() -> str | None:
    """Return ``$KASSETTE_BY``, ``$JUPYTERHUB_USER`` or the OS user; None for root and jovyan."""
    for variable in ("KASSETTE_BY", "JUPYTERHUB_USER"):
        if os.environ.get(variable):
            return os.environ[variable]
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        return None
    return None if user in _NOBODY else user
