"""Programs over several processes: started by torchrun as a user would, their lines read back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT = 240


@dataclass(frozen=True)
class Line:
    """What an example says about one rank and one configuration; collectives are counted by torch's profiler."""

    rank: int
    config: str
    recomputed: str
    forward: Counter[str]
    backward: Counter[str]
    again: Counter[str]
    difference: float
    before: int
    after: int
    swapped: int


_LINE = re.compile(
    r"^rank (\d+): (\S+) \| recomputed: (.*) \| collectives in forward: (.*) \| in backward: (.*) \| of them again: (.*) "
    r"\| gradients differ by (\S+) \| saved: ([\d,]+) -> ([\d,]+) bytes, ([\d,]+) swapped$",
    re.MULTILINE,
)


def torchrun(script: Path, processes: int, *arguments: str, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run a script in several processes, one thread each, and wait for its end."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "default"}
    return subprocess.run(
        [*launcher, str(script), *arguments], capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def run_example(name: str, processes: int, *arguments: str, timeout: float = TIMEOUT) -> list[Line]:
    """Run an example that must succeed; its lines in the order of configurations and ranks."""
    done = torchrun(EXAMPLES / f"{name}.py", processes, *arguments, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return lines_in(done.stdout)


def lines_in(output: str) -> list[Line]:
    return [
        Line(int(rank), config, what, *map(_counted, counts), float(differs), *map(_number, sizes))
        for rank, config, what, *counts, differs, before, after, swapped in _LINE.findall(output)
        for sizes in [(before, after, swapped)]
    ]


def by_config(lines: list[Line], processes: int) -> dict[str, Line]:
    """One line for each configuration, after every rank was seen to say the same."""
    found: dict[str, Line] = {}
    for config in dict.fromkeys(line.config for line in lines):
        own = [line for line in lines if line.config == config]
        assert sorted(line.rank for line in own) == list(range(processes))
        assert len({repr((x.recomputed, x.forward, x.backward, x.again, x.before, x.after, x.swapped)) for x in own}) == 1
        assert all(line.difference <= 1e-5 for line in own)
        found[config] = own[0]
    return found


def _counted(text: str) -> Counter[str]:
    return Counter({name: int(number) for number, name in (part.split(" ") for part in text.split(", ") if part != "none")})


def _number(text: str) -> int:
    return int(text.replace(",", ""))
