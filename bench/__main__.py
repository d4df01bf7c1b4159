"""Print all figures. Ratios are within one run, because machines differ and are busy."""

from __future__ import annotations

import importlib
import sys

_ROOMS = ("labsim", "labgob", "labrpc", "lab", "race", "page", "stress", "cluster")


def main(rooms: list[str]) -> int:
    unknown = [room for room in rooms if room not in _ROOMS]
    if unknown:
        print(f"bench: no such room: {', '.join(unknown)}; there are {', '.join(_ROOMS)}", file=sys.stderr)
        return 2
    print(f"{'':34} {'here':>10} {'elsewhere':>10} {'ratio':>7}  elsewhere is")
    for room in rooms or _ROOMS:
        module = importlib.import_module(f"bench.bench_{room}")
        print(f"{room}:", flush=True)
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
