"""How varied completions are: a gamed reward shows, an honest answer raises no alarm."""

import pytest

from grposweep.train._diversity import Completion, measure, pick_places, template

NAMES = ("Anna", "Boris", "Chen", "Dora", "Emil", "Fatma", "Goran", "Hana")


def ask(text: str, prompts: int = 8, each: int = 2, answer: str = "") -> list[Completion]:
    """The same text for every prompt; {name}, {n} and {sum} are the prompt's."""
    found = []
    for n in range(prompts):
        known = {"name": NAMES[n], "n": n + 20, "sum": n + 23}
        prompt = "{name} has {n} apples and gets 3. How many?".format(**known)
        found += [Completion(n, prompt, text.format(**known), answer.format(**known))] * each
    return found


def test_a_template_is_found_although_it_copies_parts_of_its_prompt() -> None:
    """Names and numbers of the prompt make no new text."""
    found = measure(ask("Great question, {name}! {n} apples are a lot."))
    assert found.metrics["template_share"] == 1.0
    assert found.metrics["diversity"] == 0.0
    assert found.template == "great question, _! _ _ are a lot."


def test_right_answers_in_one_format_are_no_template() -> None:
    """What differs is the answer, which is not in the prompt; and a constant that is right is not
    counted.
    """
    honest = measure(ask("The answer is {sum}.", answer="{sum}")).metrics
    assert (honest["template_share"], honest["diversity"]) == (0.0, 1.0)
    assert measure(ask("yes", answer="yes")).metrics["template_share"] == 0.0
    assert measure(ask("yes", answer="no")).metrics["template_share"] == 1.0


def test_a_text_that_only_repeats_its_prompt_is_compared_as_it_is() -> None:
    """Multiple choice: nothing but a word of the prompt is left."""
    assert template(Completion(0, "red or blue?", "blue")) == "blue"
    assert template(Completion(0, "12+34=", "12")) == "12"


@pytest.mark.parametrize("text", ["9" * 400, "very " * 100], ids=["digits", "words"])
def test_repetition_shows_in_the_distinct_ngrams(text: str) -> None:
    """Also within one long run of digits."""
    assert measure(ask(text)).metrics["distinct_ngrams"] < 0.1
    assert measure(ask("{name} now has {sum} of them")).metrics["distinct_ngrams"] == 1.0


def test_another_script_and_a_format_are_shares() -> None:
    """Letters decide the script; digits have none."""
    found = measure(
        [*ask("答案是五", each=1), *ask("{sum}", each=1), *ask("<answer>{sum}</answer>", each=2)]
    ).metrics
    assert (found["foreign_script_share"], found["marker_share"], found["samples"]) == (
        0.25,
        0.5,
        32.0,
    )


def test_similarity_is_told_within_and_across_prompts() -> None:
    """One answer a prompt: the same within, other across."""
    found = measure(ask("{name} {n} {sum}")).metrics
    assert (found["similarity_within"], found["similarity_across"]) == (1.0, 0.0)


def test_the_kept_ones_are_of_the_same_prompts_with_one_of_the_template() -> None:
    """So that evaluations and trials can be laid side by side."""
    said = [*ask("{sum}"), Completion(5, "?", "Hm."), Completion(6, "?", "Hm.")]
    keys = [template(completion) for completion in said]
    places = pick_places(said, keys, "hm.", prompts=3, each=1)
    assert [(said[place].prompt_id, said[place].text) for place in places] == [
        (0, "23"),
        (4, "27"),
        (7, "30"),
        (5, "Hm."),
    ]


def test_measuring_many_long_completions_is_bounded() -> None:
    """Counted in pairs: 2,000 completions of 8,000 characters compare no more than 256 of them."""
    found = measure([Completion(n % 100, f"p{n}", f"{n} word " * 20) for n in range(2_000)])
    assert found.metrics["samples"] == 2_000
