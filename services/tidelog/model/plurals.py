"""The plurals of nouns and verbs in messages."""

from __future__ import annotations


def counted(number: int, noun: str, *verbs: str, thousands: str = "") -> str:
    """Returns a number and its noun, whose plural ends with s: `1 move`, `2 moves`.

    The verb follows if its singular and plural are given: `1 move was`, `2 moves were`. `thousands` separates
    groups of digits and is empty or one of `,` and `_`.
    """
    text = f"{number:{thousands}} {noun}{'' if number == 1 else 's'}"
    return " ".join((text, *verbs[number != 1 :][:1]))
