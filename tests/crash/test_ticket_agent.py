"""Tickets of 24 steps, killed at random moments: nothing is paid twice, no mail is sent twice.

The long form, with the naive loop beside it, is ``python -m tests.benchmarks.ticket_agent``.
"""

from pathlib import Path

import pytest

from tests.benchmarks import ticket_agent
from tests.benchmarks.ticket_agent import Played, Theatre

ROUNDS = 15


@pytest.mark.timeout(240)  # 20 s on an idle machine
def test_thirty_tickets_killed_at_random_cost_what_an_undisturbed_one_costs(
    tmp_path: Path,
) -> None:
    rows: list[tuple[str, list[Played]]] = []
    for name, honours in (("durable", True), ("asking", False)):
        with Theatre(tmp_path / name, sink_honours_keys=honours) as theatre:
            quiet = "no crash" if honours else "sink ignores keys, no crash"
            rows.append((f"{name}, {quiet}", [theatre.warm_up(name)]))
            rows.append(
                (f"{name}, killed", [theatre.play(name, f"{name}-{n}", 1) for n in range(ROUNDS)])
            )
    print("\n" + "\n".join(ticket_agent.table(rows)))
    print(dict(ticket_agent.phases(rows)))
    ticket_agent.check(rows)
    assert sum(ticket_agent.phases(rows).values()) == 2 * ROUNDS


def test_a_naive_loop_pays_and_mails_again(tmp_path: Path) -> None:
    """What the others are compared with really does what it is blamed for."""
    with Theatre(tmp_path, sink_honours_keys=True) as theatre:
        quiet = theatre.warm_up("naive")
        crashed = theatre.play("naive", "naive", 3)
    assert (quiet.calls, quiet.mails, quiet.doubled) == (24, 6, 0)
    assert crashed.calls > quiet.calls
    assert crashed.tokens > quiet.tokens
