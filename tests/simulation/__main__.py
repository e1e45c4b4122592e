"""Long runs of the campaign: `make simulate`."""

import argparse
import sys

from tests.simulation.campaign import make_campaign

from perdure.testing.simulation.faults import KINDS
from perdure.testing.simulation.simulate import Repetition, repetition, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.seed is not None:
        repetition.set(Repetition(options.seed, has_trace=True))
    seeds = range(options.first, options.first + options.seeds)
    try:
        report = run_seeds(make_campaign, seeds, tuple(KINDS), "make simulate SEED={seed}")
    except AssertionError as error:
        print(error)  # noqa: T201
        return 1
    print(report)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
