"""Prints the answers of a new broker or cluster or their differences from Kafka's, or writes the page."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from answerslab.page import PAGE, PLACES_RECORDING, RECORDING, lines, page, read, written
from answerslab.places_script import ask_places, new_kafka, new_tidelog
from answerslab.script import Answers, ask_all


def _answers_of_cluster(whose: str) -> Answers:
    with tempfile.TemporaryDirectory() as directory:
        cluster = {"kafka": new_kafka, "tidelog": new_tidelog}[whose](Path(directory))
        try:
            return ask_places(cluster.up())
        finally:
            cluster.destroy()


if "--page" in sys.argv:
    PAGE.write_text(page())
    sys.exit()
places = sys.argv[1] == "--places"
answers = _answers_of_cluster(sys.argv[2]) if places else ask_all(sys.argv[1])
if "--compare" not in sys.argv:
    sys.stdout.write(written(answers))
else:
    kafkas = read((PLACES_RECORDING if places else RECORDING).read_text())
    different = {row for row in answers.keys() | kafkas.keys() if answers.get(row) != kafkas.get(row)}
    for whose, all_of_them in (("kafka", kafkas), ("other", answers)):
        for line in lines({row: answer for row, answer in all_of_them.items() if row in different}):
            print(f"{whose}: {line}")
