"""Runs the benchmarks and prints their figures. Compare ratios: absolute times depend on the machine and its load."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_PREFIX = "bench_"
_SUBJECTS = sorted(path.stem.removeprefix(_PREFIX) for path in Path(__file__).parent.glob(f"{_PREFIX}*.py"))


def main(subjects: list[str]) -> int:
    unknown = [subject for subject in subjects if subject not in _SUBJECTS]
    if unknown:
        print(f"bench: unknown benchmark {', '.join(unknown)}; expected one of {', '.join(_SUBJECTS)}", file=sys.stderr)
        return 2
    print(f"{'':34} {'ours':>10} {'baseline':>10} {'ratio':>7}  baseline")
    for subject in subjects or _SUBJECTS:
        module = importlib.import_module(f"bench.{_PREFIX}{subject}")
        print(f"{subject}:", flush=True)
        for row in module.measure() if hasattr(module, "measure") else ():
            ratio = row["baseline_us"] / row["ours_us"]
            print(
                f"  {row['name']:<32} {row['ours_us']:>7.2f} µs {row['baseline_us']:>7.2f} µs {ratio:>6.1f}x"
                f"  {row['baseline']}",
                flush=True,
            )
        for line in module.facts() if hasattr(module, "facts") else ():
            print(f"  {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
