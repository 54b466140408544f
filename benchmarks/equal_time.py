"""Compares the rewards of training runs after equal time.

    python benchmarks/equal_time.py RUN [RUN ...] [--last=10]

The time is the sum of `seconds/step` without the first step, which compiles, of the run that took the shortest. Prints
for each run its staleness, the steps that it made until then and the mean reward of the last of them.
"""

import argparse
import itertools
import statistics
from pathlib import Path

from lcrag.runs import read_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--last", type=int, default=10, help="steps whose rewards are averaged")
    arguments = parser.parse_args()
    records = {run: read_metrics(run)[1:] for run in arguments.runs}
    times = {run: list(itertools.accumulate(each["seconds/step"] for each in own)) for run, own in records.items()}
    end = min(own[-1] for own in times.values())
    print(f"after {end:.0f} s:")
    for run, own in records.items():
        steps = sum(seconds <= end for seconds in times[run])
        reward = statistics.mean(each["reward/total"] for each in own[max(0, steps - arguments.last) : steps])
        print(f"{run}: {steps} steps, staleness {own[-1].get('staleness/mean', 0.0):.2f}, reward {reward:.3f}")


if __name__ == "__main__":
    main()
