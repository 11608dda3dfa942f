"""A reward that is never flat, so that a model which knows nothing still learns something in a test's few steps."""


def dense(completions: list[str], answer: list[str]) -> list[float]:
    """The share of characters that are digits, and a little for length; reads only the columns it names."""
    return [
        sum(character.isdigit() for character in text) / 4 + len(text) / 40 + (text == gold)
        for text, gold in zip(completions, answer, strict=True)
    ]
