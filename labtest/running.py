"""One test function, one seed, one run: the step that the plugin repeats, and whatever else repeats tests."""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labsim import Simulation
from labtest.config import Config

MakeConfig = Callable[..., Config]


@dataclass
class Run:
    """What came of one run."""

    seed: int
    error: BaseException | None = None
    digest: str = ""
    virtual_s: float = 0.0
    real_s: float = 0.0
    configs: list[Config] = field(default_factory=list)
    simulation: Simulation | None = None

    @property
    def lines(self) -> list[str]:
        """MIT's two lines for each config of a passed test."""
        return [f"{c.description} ...\n  {c.stats}" for c in self.configs if c.description and c.stats]


def run_test(
    test: Callable[[MakeConfig], Any],
    peer_class: Any,
    seed: int,
    *,
    realtime: bool = False,
    simulation: Simulation | None = None,
) -> Run:
    """Run `test(make_config)` once. What it raises is in the result, except KeyboardInterrupt."""
    run = Run(seed)
    began_s = _time.perf_counter()

    def make_config(*, servers: int = 3, unreliable: bool = False, snapshot: bool = False) -> Config:
        config = Config(peer_class, servers=servers, unreliable=unreliable, snapshot=snapshot)
        run.configs.append(config)
        return config

    def main() -> None:
        try:
            test(make_config)
            for config in run.configs:
                config.end()
        finally:
            for config in run.configs:
                config.cleanup()

    try:
        if realtime:
            main()
        else:
            run.simulation = simulation = Simulation(seed) if simulation is None else simulation
            simulation.run(main)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        run.error = error
    if simulation is not None:
        run.digest = simulation.digest()
        run.virtual_s = simulation.now
    run.real_s = _time.perf_counter() - began_s
    return run
