"""`make sim SEEDS=n FIRST_SEED=k` runs seeds on all processors. A seed that fails prints the command that
repeats it.

python -m sim --seeds 200 [--first-seed 1] [--planted NAME] [--until-found]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sim.planted import PLANTED
from sim.seeds import outcomes, seeds_with_applications
from sim.world import Outcome

HASH_SEED = "0"
"""The hash seed of the worker processes. The iteration order of sets of strings depends on it."""


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "sim", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
    parser = argparse.ArgumentParser(
        prog="python -m sim", description="Simulates clusters, one for each seed."
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--planted", choices=sorted(PLANTED), help="plant this fault in tidelog first")
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed that fails")
    parser.add_argument(
        "--show-trace-hash", action="store_true", help="show a hash of the events, to compare runs"
    )
    parser.add_argument(
        "--applications",
        action="store_true",
        help="simulate only the seeds that contain applications with the Python client",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    return _run(arguments, Console(soft_wrap=True))


def _run(arguments: argparse.Namespace, console: Console) -> int:
    began = time.monotonic()
    failed: list[int] = []
    done = events = faults = acknowledged = 0
    seeds: Sequence[int] = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    if arguments.applications:
        seeds = seeds_with_applications(arguments.first_seed, arguments.seeds)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("seeds", total=arguments.seeds)
        for outcome in outcomes(seeds, arguments.planted, arguments.processes):
            progress.advance(bar)
            done += 1
            events += outcome.events
            faults += outcome.faults
            acknowledged += outcome.acknowledged
            if not console.is_terminal and done % SEEDS_A_LINE == 0:
                console.print(f"{done} seeds, {len(failed)} failed before this one")
            if arguments.show_trace_hash:
                console.print(f"trace {outcome.seed} {outcome.trace_hash:08x} {outcome.events}")
            if outcome.failure is not None:
                failed.append(outcome.seed)
                _show(outcome, console, whole=arguments.seeds == 1)
                if arguments.until_found:
                    break
    console.print(
        f"{done} seeds from {seeds[0]} to {seeds[-1]}: {len(failed)} failed; {events} events,"
        f" {faults} faults, {acknowledged} records acknowledged; {time.monotonic() - began:.0f} s"
    )
    if failed:
        console.print(f"failed: {' '.join(map(str, sorted(failed)))}")
    return 1 if failed else 0


LAST_EVENTS_SHOWN = 25
SEEDS_A_LINE = 100
"""The interval of progress lines if there is no terminal for a progress bar."""


def _show(outcome: Outcome, console: Console, *, whole: bool) -> None:
    lines = outcome.last_events if whole else outcome.last_events[-LAST_EVENTS_SHOWN:]
    console.print("\n".join(lines), markup=False, highlight=False)
    console.print(
        f"seed {outcome.seed} failed while {outcome.phase}, {outcome.virtual_s:.1f} s: {outcome.failure}",
        markup=False,
        highlight=False,
    )
    console.print(f"again: make sim FIRST_SEED={outcome.seed} SEEDS=1", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
