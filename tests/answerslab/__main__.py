"""Prints the answers of a new broker or their differences from those of Kafka, or writes the page."""

from __future__ import annotations

import sys
from pathlib import Path

from answerslab.page import PAGE, page
from answerslab.recording import lines, read, written
from answerslab.script import ask_all

if "--page" in sys.argv:
    PAGE.write_text(page())
    sys.exit()
answers = ask_all(sys.argv[1])
if "--compare" not in sys.argv:
    sys.stdout.write(written(answers))
else:
    kafkas = read(Path(__file__).with_name("answers_of_kafka.txt").read_text())
    different = {row for row in answers.keys() | kafkas.keys() if answers.get(row) != kafkas.get(row)}
    for whose, all_of_them in (("kafka", kafkas), ("other", answers)):
        for line in lines({row: answer for row, answer in all_of_them.items() if row in different}):
            print(f"{whose}: {line}")
