"""Attacks a broker and measures what everyone else feels (`make attack`).

Each attack meets a fresh `tidelog dev`. Meanwhile a bystander, another client in a process of its own, sends
one small request after the other, or works if the attack fills a limit that clients share. The table shows
its longest wait and the peak of the broker's memory. The exit code is 1 if one exceeds its bound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from attack.attacks import ATTACKS as OTHER_ATTACKS
from attack.attacks import LEFT_OUT, NOT_FILLED, TARGET, Attack, Target, await_coordinator
from attack.console import CONSOLE_ATTACK, console
from attack.filling import FILLING_ATTACKS, settings_with_login
from attack.shared_limits import LIMIT_ATTACKS
from attack.work import PARTITIONS
from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import create_topic

BYSTANDERS_TOPIC: Final = "bystander"
BYSTANDER_END_S: Final = 120.0
ATTACKS: Final = (*OTHER_ATTACKS, *FILLING_ATTACKS, *LIMIT_ATTACKS, CONSOLE_ATTACK)
SHORT_SCALE: Final = 0.1
TABLE_WIDTH: Final = 150


class Result(NamedTuple):
    """The effects of one attack. `longest_ms` is the bystander's longest wait, and `longest_hold_ms` is the
    longest one without the time in which other processes had the CPUs. The sizes are of the broker's memory.
    """

    longest_ms: float
    lost: int
    before_mb: float
    peak_mb: float
    outcome: str
    is_alive: bool
    longest_hold_ms: float = 0.0
    quiet_p99_ms: float = 0.0
    """The 99th percentile of a working bystander's waits before the attack."""
    p99_ms: float = 0.0
    refused: int = 0
    """The jobs of a working bystander in which it was refused."""

    @property
    def waits(self) -> str:
        """The longest wait, and for a working bystander the 99th percentiles before and during the attack."""
        longest = f"{self.longest_ms:,.0f}"
        if not self.quiet_p99_ms:
            return longest
        refused = f", {self.refused} refused" if self.refused else ""
        return f"{longest} (p99 {self.p99_ms:,.0f}, quiet {self.quiet_p99_ms:,.0f}{refused})"

    def faults(self, attack: Attack) -> list[str]:
        """Returns what exceeds the attack's bounds."""
        found = []
        if not self.is_alive:
            found.append("the broker died")
        bound_ms = max(2 * self.quiet_p99_ms, attack.least_p99_ms)
        if attack.fills and self.p99_ms > bound_ms:
            found.append(f"another client's p99 went from {self.quiet_p99_ms:,.0f} to {self.p99_ms:,.0f} ms")
        elif not attack.fills and self.longest_hold_ms > attack.bound_ms:
            found.append(f"the broker let another client wait for {self.longest_hold_ms:,.0f} ms")
        if self.lost:
            found.append(f"another client lost its connection {self.lost} times")
        if self.refused:
            found.append(f"another client was refused {self.refused} times")
        if self.outcome.startswith((NOT_FILLED, LEFT_OUT)):
            found.append(self.outcome)
        if self.peak_mb - self.before_mb > attack.bound_mb:
            found.append(f"memory grew by {self.peak_mb - self.before_mb:,.0f} MB")
        return found


def memory_mb(pid: int, name: str) -> float:
    """Returns VmRSS or VmHWM (the peak since `forget_peak`) of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def run(attack: Attack, directory: Path, scale: float) -> Result:
    metrics_address, port = f"127.0.0.1:{free_port()}", free_port()
    sasl_address = f"127.0.0.1:{free_port()}"
    settings = {"tidelog.metrics.listener": metrics_address}
    if attack.fills:
        settings |= {**settings_with_login(port, sasl_address), **attack.settings}
    broker = BrokerProcess(directory / "data", directory / "broker.log", settings, port).start()
    stack = contextlib.ExitStack()
    try:
        create_topic(broker.bootstrap, BYSTANDERS_TOPIC, PARTITIONS)
        create_topic(broker.bootstrap, TARGET, attack.partitions)
        target = Target(broker, metrics_address, scale, sasl_address, f"127.0.0.1:{free_port()}")
        if attack.fills:
            await_coordinator(target, BYSTANDERS_TOPIC)  # its group has the same name
        observed_pid = broker.pid
        options = [*(("--works",) if attack.fills else ()), *attack.bystander_options]
        if attack.has_console:
            observed_pid = stack.enter_context(console(target.console_address, sasl_address, directory))
            options += ["--console", target.console_address]
        bystander = subprocess.Popen(
            [
                *(sys.executable, "-m", "attack.bystander", broker.bootstrap, BYSTANDERS_TOPIC),
                *(str(observed_pid), *options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert bystander.stdout is not None
        assert bystander.stdout.readline() == "ready\n"
        forget_peak(broker.pid)
        before_mb = memory_mb(broker.pid, "VmRSS")
        try:
            outcome = attack.run(target)
            time.sleep(0.2)
        finally:
            said, _ = bystander.communicate(timeout=BYSTANDER_END_S)
        felt = json.loads(said)
        is_alive = broker.is_running()
        peak_mb = memory_mb(broker.pid, "VmHWM") if is_alive else 0.0
        return Result(
            felt["longest_ms"],
            felt["lost"],
            before_mb,
            peak_mb,
            outcome,
            is_alive,
            felt["longest_hold_ms"],
            felt["quiet_p99_ms"],
            felt["p99_ms"],
            felt["refused"],
        )
    finally:
        stack.close()
        broker.kill()


def table_of(attacks: list[Attack], results: dict[str, Result], before: dict[str, Result]) -> Table:
    table = Table("attack", "longest wait ms", "memory MB", "outcome", title="Attacks on one broker")
    for attack in attacks:
        result, earlier = results[attack.name], before.get(attack.name)
        wait, memory = result.waits, f"{result.peak_mb:,.0f}"
        if earlier is not None:
            wait, memory = f"{earlier.waits} -> {wait}", f"{earlier.peak_mb:,.0f} -> {memory}"
        outcome = result.outcome if earlier is None else f"{earlier.outcome} -> {result.outcome}"
        style = "red" if result.faults(attack) else None
        table.add_row(attack.title, wait, memory, escape(outcome), style=style)
    return table


def markdown(attacks: list[Attack], results: dict[str, Result], before: dict[str, Result]) -> str:
    lines = [
        "| attack | longest wait of another client, ms | peak memory of the broker, MB | outcome |",
        "|---|---|---|---|",
    ]
    for attack in attacks:
        result, earlier = results[attack.name], before.get(attack.name)
        wait, memory, outcome = result.waits, f"{result.peak_mb:,.0f}", result.outcome
        if earlier is not None:
            wait, memory = f"{earlier.waits} → {wait}", f"{earlier.peak_mb:,.0f} → {memory}"
            outcome = f"before: {earlier.outcome}; now: {outcome}"
        lines.append(f"| {attack.title} | {wait} | {memory} | {outcome} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="a tenth of each attack's elements")
    parser.add_argument("--only", default="", help="names of attacks, separated by commas")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--before", type=Path, help="results of another build, to show beside these")
    parser.add_argument("--markdown", type=Path, help="write the table as Markdown")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    attacks = [attack for attack in ATTACKS if not wanted or attack.name in wanted]
    if unknown := wanted - {attack.name for attack in ATTACKS}:
        parser.error(
            f"there is no attack {sorted(unknown)[0]}; the names are {', '.join(a.name for a in ATTACKS)}"
        )
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    before = {}
    if options.before:
        before = {name: Result(*values) for name, values in json.loads(options.before.read_text()).items()}
    results: dict[str, Result] = {}
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(attacks))
        for attack in attacks:
            progress.update(task, description=attack.name)
            with tempfile.TemporaryDirectory(prefix="tidelog-attack-") as name:
                result = run(attack, Path(name), SHORT_SCALE if options.short else 1.0)
            results[attack.name] = result
            for fault in result.faults(attack):  # now, because all of the attacks take long
                progress.console.print(f"{attack.name}: {fault}", markup=False)
            progress.advance(task)
    console.print(table_of(attacks, results, before))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))
    if options.markdown:
        options.markdown.write_text(markdown(attacks, results, before))
    failed = {attack.name: faults for attack in attacks if (faults := results[attack.name].faults(attack))}
    for attack_name, faults in failed.items():
        console.print(f"{attack_name}: {', '.join(faults)}")
    console.print(f"{len(attacks) - len(failed)} of {len(attacks)} attacks stayed within their bounds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
