"""Mix weights of several trainings: `python -m tools.equivalence.mix TO WEIGHTS=SHARE [WEIGHTS=SHARE ...]`.

Writes the mean of the weights by share, which keeps more of what each training has learned than the last one
alone. All have to be trainings from one start.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def main() -> None:
    """Read the command line, mix and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("to", type=Path)
    parser.add_argument("parts", nargs="+", metavar="WEIGHTS=SHARE")
    given = parser.parse_args()
    parts = [part.rsplit("=", 1) for part in given.parts]
    shares = [float(share) for _, share in parts]
    if abs(sum(shares) - 1) > 1e-6:
        parser.error(f"the shares sum to {sum(shares):g}, and have to sum to 1; change one of them")
    states = [torch.load(path, weights_only=True) for path, _ in parts]
    mixed = {
        name: sum(share * state[name] for share, state in zip(shares, states))
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }
    torch.save(mixed, given.to)


if __name__ == "__main__":
    main()
