"""A process that is killed leaves nothing on the disk; one that is forked starts anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

HERE = str(Path(__file__).parent)


def start(program: str, directory: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": HERE, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(directory)], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_nothing_is_left_after_kill_9(tmp_path: Path) -> None:
    unnamed, named = tmp_path / "unnamed", tmp_path / "named"
    unnamed.mkdir()
    named.mkdir()
    program = """
        import os, sys, time, torch
        from swapping import offload
        tickets = [offload(torch.zeros(1_000_000), sys.argv[1] + "/unnamed") for _ in range(5)]
        del os.O_TMPFILE
        tickets += [offload(torch.zeros(1_000_000), sys.argv[1] + "/named") for _ in range(5)]
        print("away", flush=True)
        time.sleep(60)
    """
    with start(program, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "away\n"
        process.send_signal(signal.SIGKILL)
    assert os.listdir(unnamed) == os.listdir(named) == []


def test_a_process_ends_well_with_copies_going_on(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from memopt.runtime.stores.disk import DiskArena
        import time
        from swapping import OPS, offload
        read = DiskArena.read
        def slow(*args):
            time.sleep(0.2)
            read(*args)
            print("read", flush=True)
        DiskArena.read = slow
        tokens = [OPS.prefetch(offload(torch.zeros(1_000_000), sys.argv[1])) for _ in range(3)]
    """
    with start(program, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "read\n" * 3
    assert process.returncode == 0


def test_a_forked_process_starts_anew(tmp_path: Path) -> None:
    program = """
        import os, sys, torch
        from memopt.runtime import SwapError, swap_counters
        from swapping import OPS, offload, open_files, round_trip, wait_like

        value = torch.arange(1000.0)
        files = open_files()
        ticket = offload(value, sys.argv[1])
        token = OPS.prefetch(ticket)
        child = os.fork()
        if not child:
            code = 1
            try:
                assert open_files() == files
                assert swap_counters().offloads == 0
                for call in (lambda: OPS.prefetch(ticket), lambda: wait_like(token, value)):
                    try:
                        call()
                        raise AssertionError
                    except SwapError as error:
                        assert "its parent swapped it out" in str(error)
                other = value + 1
                del ticket, token
                assert torch.equal(round_trip(other, sys.argv[1]), other)
                assert swap_counters().offloads == 1
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(wait_like(token, value), value)
        assert torch.equal(round_trip(value, sys.argv[1]), value)
        print("sound", flush=True)
    """
    with start(program, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "sound\n"
