"""The policy that continues trials in the order of their ranks, on small made-up curves of ten
evaluations.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grposweep.config.search_budget import Budget
from grposweep.search.budget import buys
from grposweep.search.early_stopping import Action, Curve, Decision, State
from grposweep.search.early_stopping.rank import RankPolicy
from grposweep.search.early_stopping.rungs import FEWEST, describe_budget, least_share
from support import executed_lines

# completions
TOTAL = 1000.0


def trial(
    number: int,
    *values: float,
    state: State = State.PAUSED,
    total: float = TOTAL,
) -> Curve:
    """Return a trial with these evaluations, one after each tenth of its training."""
    completions = [total * (n + 1) / 10 for n in range(len(values))]
    state = State.FINISHED if len(values) == 10 else state
    return Curve(total, completions, values, 0.0, number=number, state=state)


def first_evaluations(count: int) -> list[Curve]:
    """Return trials that paused after their first evaluation; a larger number is better."""
    return [trial(number, number / 100) for number in range(count)]


def decide(effort: float, mine: Curve, others: Sequence[Curve]) -> Decision:
    """Return the decision on a running trial, while more may start."""
    return RankPolicy(effort).decide(replace(mine, state=State.RUNNING), others, more=True)


def test_the_worst_of_eight_pauses_and_the_best_continues() -> None:
    """The reason says rank, number and share."""
    others = first_evaluations(FEWEST - 1)
    assert decide(0.6, trial(99, -0.1), others) == Decision(
        Action.PAUSE, "rank 8 of 8 after 10% of the training"
    )
    # with all the effort no trial pauses
    assert decide(1.0, trial(99, -0.1), others).action is Action.CONTINUE
    others[1:] = [trial(n, 0.0, 0.0) for n in range(1, 7)]
    assert decide(0.6, trial(99, 0.5), others).action is Action.CONTINUE


def test_until_eight_trials_have_come_as_far_even_the_leader_pauses() -> None:
    """A free slot starts a new trial before that."""
    assert decide(0.6, trial(99, 0.5), first_evaluations(3)) == Decision(
        Action.PAUSE, "rank 1 of 4 after 10% of the training"
    )
    assert RankPolicy(0.6).promote(first_evaluations(FEWEST - 1), more=True) is None


def test_a_slot_never_waits_for_trials_on_their_way_if_nothing_new_can_start() -> None:
    """It continues the best of those that have come as far."""
    assert (
        RankPolicy(0.6).promote([*first_evaluations(3), trial(9, state=State.RUNNING)], more=False)
        == 2
    )


def test_only_a_tenth_a_quarter_and_half_of_the_training_are_rungs() -> None:
    """The evaluations after 10, 30 and 50 % are the first at or after them."""
    others = [trial(n, *[1.0] * 9) for n in range(FEWEST)]
    pauses = [
        decide(0.6, trial(99, *[0.0] * seen), others).action is Action.PAUSE
        for seen in range(1, 10)
    ]
    assert [seen for seen, paused in enumerate(pauses, 1) if paused] == [1, 3, 5]


def test_the_shares_that_continue_follow_the_effort() -> None:
    """exp(-3 x 0.1 / effort): of 20 trials 11, 14 and 15 may continue after a tenth."""
    counts = []
    for effort in (0.5, 0.7, 0.99):
        resumed = 0
        curves = first_evaluations(20)
        while (number := RankPolicy(effort).promote(curves, more=True)) is not None:
            resumed += 1
            curves = [replace(c, state=State.FINISHED) if c.number == number else c for c in curves]
        counts.append(resumed)
    assert counts == [11, 14, 15]


def test_after_half_of_the_training_a_small_effort_continues_the_best_only() -> None:
    """The second of eight pauses, also if the first has finished."""
    # they leave enough of the effort
    stopped = [trial(n, 0.0, state=State.STOPPED) for n in range(10, 40)]
    others = [*stopped, *(trial(n, *[n / 100] * 5) for n in range(6))]
    assert (
        decide(0.3, trial(99, *[0.055] * 5), [*others, trial(6, *[0.06] * 10)]).action
        is Action.PAUSE
    )
    assert (
        decide(0.3, trial(99, *[0.055] * 5), [*others, trial(6, *[0.01] * 10)]).action
        is Action.CONTINUE
    )


def test_a_rank_among_many_weighs_more_than_one_among_few() -> None:
    """Of what is left, the third of eight after a tenth resumes before the second of two after 30
    %.
    """
    curves = [
        trial(0, *[0.9] * 10),
        trial(1, 0.8, 0.8, 0.8),
        *(trial(n, (9 - n) / 10) for n in range(2, 8)),
    ]
    assert RankPolicy(budget=lambda _: 5 * TOTAL).promote(curves, more=False) == 2


def test_a_trial_without_an_evaluation_is_expected_to_take_one_interval_until_its_rung() -> None:
    """Not what a finished trial took: the effort would seem to be spent."""
    curves = [*first_evaluations(7), trial(7, *[0.9] * 10), trial(8, state=State.RUNNING)]
    assert RankPolicy(0.25).promote(curves, more=False) == 6


def test_trials_that_differ_by_less_than_the_error_of_their_difference_are_tied() -> None:
    """Noise alone pauses none: with a standard error of 0.1, values from 0 to 0.07 are the same."""
    curves = first_evaluations(FEWEST)
    noisy = [replace(curve, errors=[0.1]) for curve in curves]
    assert decide(0.6, noisy[0], noisy[1:]).action is Action.CONTINUE
    assert decide(0.6, curves[0], curves[1:]).action is Action.PAUSE


def test_what_is_left_of_the_effort_continues_the_best_ranked_paused_trials() -> None:
    """Seven of eight have paused after a tenth; 1.8 trainings of 8 are spent."""
    curves = [*first_evaluations(7), trial(9, *[0.9] * 10)]
    assert RankPolicy(0.6).promote(curves, more=False) == 6
    spent = [*curves[:6], trial(6, *[0.5] * 9)]
    assert RankPolicy(0.2).promote([*spent, curves[-1]], more=False) is None
    assert RankPolicy(1.0).promote([*spent, curves[-1]], more=False) is not None


def test_a_larger_effort_continues_every_paused_trial() -> None:
    """Nothing is ended by its curve."""
    curves = [*first_evaluations(7), trial(9, *[0.9] * 10)]
    resumed = []
    while (number := RankPolicy(1.0).promote(curves, more=False)) is not None:
        resumed.append(number)
        curves = [trial(number, *[0.1] * 10) if c.number == number else c for c in curves]
    assert sorted(resumed) == [0, 1, 2, 3, 4, 5, 6]


def test_trainings_of_other_lengths_are_compared_at_the_same_share() -> None:
    """Twice the completions, evaluated as often."""
    others = [trial(n, n / 100, total=2 * TOTAL) for n in range(FEWEST - 1)]
    assert decide(0.6, trial(99, -0.1), others) == Decision(
        Action.PAUSE, "rank 8 of 8 after 10% of the training"
    )


def test_with_a_budget_no_trial_resumes_before_all_have_started() -> None:
    """Not even the best of thirty."""
    curves = first_evaluations(30)
    assert RankPolicy(budget=lambda _: 20 * TOTAL).promote(curves, more=True) is None


def test_a_decision_costs_a_few_lines_for_each_trial() -> None:
    """What a curve has reached is kept with it, and thousands of trials are not sorted."""
    curves = first_evaluations(1_000)
    policy = RankPolicy(0.6)
    policy.promote(curves, more=False)
    executed_lines(lambda: policy.promote(curves, more=False), 32_000)


def test_a_paused_trial_without_its_metrics_is_left_alone() -> None:
    """Its file was deleted by hand."""
    assert RankPolicy(0.6).promote([trial(0), *first_evaluations(8)[1:]], more=False) == 7


@dataclass
class Swept:
    """A sweep of drawn trainings on a simulated clock: slots of various speeds, failures, and kills
    that repeat steps.
    """

    effort: float
    evaluations: int
    slots: int
    values: list[list[float]]
    random: Random
    policy: RankPolicy | None = None
    lengths: Sequence[float] = (TOTAL, 2 * TOTAL)
    curves: list[Curve] = field(default_factory=list)

    def run(self) -> "Swept":
        """Start, resume, pause and fail trials until nothing is left."""
        policy = self.policy or RankPolicy(self.effort)
        ends = dict[int, float]()
        while True:
            while len(ends) < self.slots:
                more = self.has_points(policy)
                number = policy.promote(self.curves, more)
                if number is None and not more:
                    break
                if number is None:
                    number = len(self.curves)
                    total = self.random.choice(self.lengths)
                    self.curves.append(Curve(total, (), (), number=number, state=State.RUNNING))
                self._set(number, state=State.RUNNING)
                ends[number] = self.random.random() + max(ends.values(), default=0.0) / 2
            if not ends:
                return self
            number = min(ends, key=ends.__getitem__)
            ends[number] += self.random.random()
            if self.random.random() < 0.05:
                # killed: the stretch runs again
                continue
            if self.random.random() < 0.02:
                self._set(number, state=State.STOPPED)
            else:
                self._evaluate(number, policy)
            if self.curves[number].state is not State.RUNNING:
                del ends[number]

    def has_points(self, policy: RankPolicy) -> bool:
        """Whether a trial may start."""
        most = policy.trials(self.curves) or len(self.values)
        return len(self.curves) < min(most, len(self.values))

    def _set(self, number: int, **changed: object) -> None:
        self.curves[number] = replace(self.curves[number], **changed)

    def _evaluate(self, number: int, policy: RankPolicy) -> None:
        seen = len(self.curves[number].held_out) + 1
        total = self.curves[number].total
        completions = [total * (n + 1) / self.evaluations for n in range(seen)]
        values = [self.values[number][n % len(self.values[number])] for n in range(seen)]
        self._set(
            number, completions=completions, held_out=values, errors=[0.05 * (number % 2)] * seen
        )
        others = [curve for curve in self.curves if curve.number != number]
        if seen == self.evaluations:
            self._set(number, state=State.FINISHED)
        elif (
            policy.decide(self.curves[number], others, self.has_points(policy)).action
            is Action.PAUSE
        ):
            self._set(number, state=State.PAUSED)


@pytest.mark.parametrize(
    ("text", "trials"), [("8x", 20), ("8000", 20), ("4h", 9), ("1000x", 2500), ("300", 1)], ids=str
)
def test_the_number_of_trials_follows_from_the_budget(text: str, trials: int) -> None:
    """Two and a half times as many as it could finish; 95 % of hours. Here two have trained two
    trainings.
    """
    curves = [trial(0, *[0.5] * 10), trial(1, *[0.4] * 10)]
    budget = Budget.parse(text)
    policy = RankPolicy(budget=lambda known: buys(budget, known, lambda: 2.0))
    assert policy.trials(curves) == trials
    assert RankPolicy(budget=lambda _: None).trials([]) == FEWEST


@pytest.mark.parametrize(
    ("trainings", "evaluations", "said"),
    [
        (
            1.0,
            10,
            "1 trial starts, and the first comparison costs 0.1x. To start more, set search.",
        ),
        (3.0, 1, "about 3 trials start, and the first comparison costs 3x. To start more, set sc"),
        (3.0, 1, "To start more, set schedule.evaluations=2"),
        (3.0, 2, "about 5 trials start, and the first comparison costs 2.5x"),
        (14.0, 10, "about 35 trials start, and the first comparison costs 7x"),
    ],
)
def test_few_evaluations_start_few_trials_and_the_plan_says_what_starts_more(
    trainings: float, evaluations: int, said: str
) -> None:
    """All train until they are first compared, and one finishes."""
    assert said in describe_budget(trainings, evaluations)


@pytest.mark.parametrize(("trainings", "pauses"), [(5.0, [1, 3, 5]), (7.0, [2, 3, 5])], ids=str)
def test_the_first_rung_follows_the_budget(trainings: float, pauses: list[int]) -> None:
    """After a tenth of the training below six trainings, after a fifth from there on."""
    others = [trial(n, *[1.0] * 9) for n in range(FEWEST)]
    policy = RankPolicy(budget=lambda _: trainings * TOTAL)
    running = [trial(99, *[0.0] * seen, state=State.RUNNING) for seen in range(1, 10)]
    found = [policy.decide(curve, others, more=True).action is Action.PAUSE for curve in running]
    assert [seen for seen, paused in enumerate(found, 1) if paused] == pauses


def test_a_larger_budget_resumes_trials_that_paused_before_its_first_rung() -> None:
    """Of ten that paused after a tenth, the best one."""
    curves = first_evaluations(10)
    assert RankPolicy(budget=lambda _: 20 * TOTAL).promote(curves, more=False) == 9


def test_what_gpu_hours_buy_is_unknown_before_the_first_evaluation() -> None:
    """So eight trials start."""
    begun = [trial(0, state=State.RUNNING)]
    assert buys(Budget.parse("4h"), begun, lambda: 1.0) is None


def test_a_budget_is_spent_and_not_exceeded() -> None:
    """With three slots: all trials that it buys start, several finish, and the leaders do."""
    drawn = [[round(Random(n).random(), 3)] for n in range(25)]
    swept = Swept(1.0, 10, 3, drawn, Random(0))
    swept.policy = RankPolicy(budget=lambda _: 10 * 1.5 * TOTAL)
    curves = swept.run().curves
    spent = sum(curve.done for curve in curves)
    assert 0.9 * 15 * TOTAL < spent <= 15 * TOTAL
    assert sum(curve.state is State.FINISHED for curve in curves) >= 3


VALUES = st.lists(st.floats(-1, 1).map(lambda value: round(value, 1)), min_size=1, max_size=10)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("EXAMPLES", "100")))
@given(
    st.lists(VALUES, min_size=1, max_size=20),
    st.floats(0.05, 0.99),
    st.integers(1, 20),
    st.integers(1, 8),
    st.integers(0, 1000),
)
def test_any_sweep_spends_its_effort_at_most_and_one_trial_finishes(
    drawn: list[list[float]], effort: float, evaluations: int, slots: int, seed: int
) -> None:
    """Beyond the effort, or the least share that is possible, is what one trial takes, and another
    if the first one fails.
    """
    curves = Swept(effort, evaluations, slots, drawn, Random(seed)).run().curves
    full = sum(curve.total for curve in curves)
    most = max(curve.total for curve in curves)
    # of one trial's training
    first = least_share(effort, 10**9, evaluations)
    failed = sum(curve.state is State.STOPPED for curve in curves)
    assert sum(curve.done for curve in curves) <= max(effort, first) * full + most * (
        1 + failed
    ) * (1 + 1e-9)
    assert all(curve.state in (State.FINISHED, State.PAUSED, State.STOPPED) for curve in curves)
    left = [curve for curve in curves if curve.state is not State.STOPPED]
    assert not left or any(curve.state is State.FINISHED for curve in curves)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("EXAMPLES", "100")))
@given(st.floats(1.0, 20.0), st.integers(1, 20), st.integers(1, 8), st.integers(0, 1000))
def test_any_search_spends_its_budget_at_most_and_one_trial_finishes(
    trainings: float, evaluations: int, slots: int, seed: int
) -> None:
    """Nothing is spent beyond it, and one trial finishes unless one failed."""
    random = Random(seed)
    length = random.choice([TOTAL, 2 * TOTAL])
    budget = trainings * length
    drawn = [[round(random.random(), 1) for _ in range(10)] for _ in range(60)]
    policy = RankPolicy(budget=lambda _: budget)
    curves = Swept(1.0, evaluations, slots, drawn, random, policy, [length]).run().curves
    assert sum(curve.done for curve in curves) <= budget * (1 + 1e-6)
    assert {State.FINISHED, State.STOPPED} & {curve.state for curve in curves}


def test_the_least_share_is_the_first_rung_of_all_and_the_rest_of_one() -> None:
    """More evaluations make it smaller."""
    assert least_share(0.3, 10, 1) == 1
    assert least_share(0.3, 10, 4) == pytest.approx(0.325)
    assert least_share(0.3, 10, 10) == pytest.approx(0.19)


def test_a_sampler_is_told_the_last_values_of_paused_trials() -> None:
    """Of no finished ones, whose values it has."""
    curves = [trial(0, 0.1, 0.2), trial(1, *[0.5] * 10), trial(2)]
    assert RankPolicy().predict(curves) == {0: 0.2}
