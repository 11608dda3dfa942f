"""What fresh seeds said of the leaders, as the leaderboard and the last lines of a sweep show it."""

from collections.abc import Sequence
from dataclasses import replace

from grposweep.report.tables import Row
from grposweep.search.replication import Ranking, on_fresh_seeds


def with_seeds(rows: Sequence[Row], standing: Ranking | None) -> list[Row]:
    """The rows of the search with what fresh seeds made of them: the winner first, then those tied with it."""
    if standing is None:
        return list(rows)
    found = {runner.number: on_fresh_seeds(runner) for runner in standing.alive}
    texts = {number: "" if worth is None else f"{worth} ({worth.count})" for number, worth in found.items()}
    return [
        replace(row, fresh=texts.get(row.number, ""), place=told[0], fate=told[1])
        if (told := standing.places.get(row.number))
        else row
        for row in rows
    ]


def words_on_seeds(standing: Ranking | None) -> list[str]:
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
