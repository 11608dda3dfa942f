"""What fresh seeds said of the leaders, as the leaderboard and the last lines of a sweep show it."""

from collections.abc import Sequence
from dataclasses import replace

from grposweep.report.tables import Row
from grposweep.search.race import Standing, on_fresh_seeds


def with_seeds(rows: Sequence[Row], standing: Standing | None) -> list[Row]:
    """The rows of the search with what fresh seeds made of them: the winner first, then those tied with it."""
    if standing is None:
        return list(rows)
    told = {runner.number: _told(standing, index) for index, runner in enumerate(standing.alive)}
    told |= {number: ("", len(standing.alive) + i, why) for i, (number, why) in enumerate(standing.out.items())}
    return [
        replace(row, fresh=told[row.number][0], place=told[row.number][1], fate=told[row.number][2])
        if row.number in told
        else row
        for row in rows
    ]


def _told(standing: Standing, index: int) -> tuple[str, int | None, str]:
    """Estimate, place and fate of a runner that is still in the race, or has won it."""
    runner = standing.alive[index]
    found = on_fresh_seeds(runner)
    text = "" if found is None else f"{found} ({found.count})"
    if standing.winner is None:
        return text, None, "unfinished"
    return text, index, "tied" if index else "best"


def words_on_seeds(standing: Standing | None) -> list[str]:
    """The race's outcome in sentences; none where no replicate was wanted."""
    if standing is None or not (standing.alive or standing.out):
        return []
    if standing.wanted:
        return [f"the leaders have not been told apart on fresh seeds yet: {len(standing.wanted)} replicates to go"]
    if standing.winner is None:
        return ["every leader failed on some fresh seed, so the best trial of the search is shown unconfirmed"]
    found = on_fresh_seeds(standing.winner)
    text = f"on {found.count} fresh seeds: trial {standing.winner.number}, {found} (95 %)" if found else ""
    tied = ", ".join(str(runner.number) for runner in standing.tied)
    ties = (
        f"statistically tied with it: trial{'s' * (len(standing.tied) > 1)} {tied}"
        if tied
        else "no other is tied with it"
    )
    return [text, ties]
