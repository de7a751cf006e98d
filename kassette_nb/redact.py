"""What never reaches the arguments, contexts and prompts kept in a journal.

Results, answers and the workflow's input are never touched: a replay must see what the live run
saw. Arguments and contexts are kept for people to read, and people paste journals into issues.
"""

from __future__ import annotations

import re

from .values import JSON

HIDDEN = "[redacted]"
_SECRET = re.compile(
    r"(^|[_\-.])(api[_\-]?key|x[_\-]api[_\-]key|apikey|secret|client[_\-]?secret|password|passwd"
    r"|authorization|authorization[_\-]?token|cookie|set[_\-]cookie|access[_\-]?token"
    r"|auth[_\-]?token|bearer"
    r"|private[_\-]?key)$",
    re.IGNORECASE,
)


def secret(name: str) -> bool:
    """Tell whether a name is the usual one of a secret."""
    return _SECRET.search(name) is not None


def redact(value: JSON) -> JSON:
    """Return a copy in which the value under every key that names a secret is hidden."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if isinstance(key, str) and _SECRET.search(key) else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value
