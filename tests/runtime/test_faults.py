"""What can go wrong is told with the value, its bytes and the field to change; everything else goes on, and nothing is kept."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from memopt.runtime import SwapError, registry
from memopt.runtime.settings import Settings
from memopt.runtime.stores.disk import DiskArena
from swapping import LARGE, OPS, offload, open_files, round_trip, settled, until, wait_like

VALUE = torch.arange(1000.0)


def assert_usable(directory: Path) -> None:
    assert torch.equal(round_trip(VALUE, directory), VALUE)


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    before = settled()
    yield
    until(lambda now: (now.disk_bytes, now.live_tickets) == (before.disk_bytes, before.live_tickets))


@contextmanager
def limit(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def test_no_such_directory(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    said = rf"swap of 'layers.0.mlp' \(4000 bytes\): the directory '{missing}' does not exist.*Create it, or set swap.dir"
    with pytest.raises(SwapError, match=said):
        offload(VALUE, missing)
    missing.mkdir()
    assert_usable(missing)


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SwapError, match=r"4000 bytes.*[Ss]et swap.dir"):
        offload(VALUE, tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SwapError, match=r"4000 bytes.*is not writable.*Set swap.dir to a directory that is"):
        offload(VALUE, tmp_path)
    tmp_path.chmod(0o700)
    assert_usable(tmp_path)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_directory_that_refuses(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(SwapError, match=r"4000 bytes.*is not writable.*Set swap.dir to a directory that is"):
            offload(VALUE, tmp_path)
    assert_usable(tmp_path)


def test_no_more_file_descriptors(tmp_path: Path) -> None:
    opened = []
    with limit(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + 8):
        try:
            with suppress(OSError):
                while True:
                    opened.append(os.dup(1))
            with pytest.raises(SwapError, match=r"4000 bytes.*may open no more files.*ulimit -n.*swap.store.*swap.enable"):
                offload(VALUE, tmp_path)
        finally:
            for file in opened:
                os.close(file)
    assert_usable(tmp_path)


def test_a_full_disk_is_told_at_once(tmp_path: Path) -> None:
    with limit(resource.RLIMIT_FSIZE, 100_000):
        kept = offload(VALUE, tmp_path)
        said = r"swap of 'big' \(4000000 bytes\): no room in .*Free some space there, set swap.dir .* or swap fewer layers"
        with pytest.raises(SwapError, match=said):
            offload(torch.zeros(1_000_000), tmp_path, name="big")
        assert_usable(tmp_path)
        assert torch.equal(wait_like(OPS.prefetch(kept), VALUE), VALUE)
    assert torch.equal(round_trip(torch.zeros(1_000_000), tmp_path), torch.zeros(1_000_000))


def test_no_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(SwapError, match="No space left on device"):
            offload(VALUE, tmp_path)
    assert_usable(tmp_path)


def test_what_is_dropped_but_still_being_written_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = DiskArena.write

    def slow(self: DiskArena, offset: int, memory: memoryview) -> None:
        time.sleep(0.05)
        write(self, offset, memory)

    monkeypatch.setattr(DiskArena, "write", slow)
    with limit(resource.RLIMIT_FSIZE, 1 << 20):
        for number in range(4):
            value = torch.full((200_000,), float(number))
            ticket = offload(value, tmp_path)
            if number % 2:
                assert torch.equal(wait_like(OPS.prefetch(ticket), value), value)
            del ticket


def test_a_file_system_that_knows_neither_unnamed_files_nor_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.delattr(os, "O_TMPFILE")
    for number in range(2):
        (directory := tmp_path / str(number)).mkdir()
        if number:
            monkeypatch.delattr(os, "posix_fallocate")
        else:
            monkeypatch.setattr(os, "posix_fallocate", unknown)
        assert_usable(directory)
        assert os.listdir(directory) == []


def test_short_reads_and_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, memory, offset: pwrite(file, memory[:700], offset))
    monkeypatch.setattr(os, "preadv", lambda file, parts, offset: preadv(file, [parts[0][:900]], offset))
    assert_usable(tmp_path)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError("none"), SystemExit(3)])
def test_a_write_that_fails_is_told_when_the_value_is_wanted(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DiskArena, "write", fail)
        ticket = offload(VALUE, tmp_path)
        settled()
    with pytest.raises(SwapError, match=r"swap of 'layers.0.mlp' \(4000 bytes\): .*Set swap\.(dir|enable)"):
        wait_like(OPS.prefetch(ticket), VALUE)
    assert_usable(tmp_path)


def test_a_write_that_fails_is_told_at_once_with_asynchronous_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(DiskArena, "write", fail)
        with pytest.raises(SwapError, match="Input/output error"):
            offload(VALUE, tmp_path, asynchronous=False)
    assert_usable(tmp_path)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_read_that_fails_is_told_by_wait(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    ticket = offload(VALUE, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(DiskArena, "read", fail)
        token = OPS.prefetch(ticket)
        for _ in range(2):
            with pytest.raises(SwapError, match=r"swap of 'layers.0.mlp' \(4000 bytes\)"):
                wait_like(token, VALUE)
    assert torch.equal(wait_like(OPS.prefetch(ticket), VALUE), VALUE)


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    ticket = offload(VALUE, tmp_path, asynchronous=False)
    carrier = _engine(tmp_path)._carriers[0]
    os.ftruncate(carrier._arena._file, 100)  # type: ignore[attr-defined]
    token = OPS.prefetch(ticket)
    with pytest.raises(SwapError, match="the file ended early"):
        wait_like(token, VALUE)


def _engine(directory: Path) -> registry.Engine:
    return registry.engine_for(torch.device("cpu"), Settings("disk", str(directory), LARGE, None))


@pytest.mark.parametrize("lane", ["_out", "_in"])
def test_a_thread_that_dies(lane: str, tmp_path: Path) -> None:
    assert_usable(tmp_path)
    worker = getattr(_engine(tmp_path)._carriers[0], lane)
    thread, busy = worker._thread, threading.Event()
    worker.submit(lambda: busy.wait() and None)
    worker.stop()
    ticket = offload(VALUE, tmp_path)
    token = OPS.prefetch(ticket)
    busy.set()
    thread.join()
    with pytest.raises(SwapError, match=r"4000 bytes\): the thread that copies \(memopt-\w+\) has died.*swap.enable"):
        wait_like(token, VALUE)
    assert_usable(tmp_path)
    if lane == "_in":
        assert torch.equal(wait_like(OPS.prefetch(ticket), VALUE), VALUE)


def test_the_host_store_is_refused_on_the_cpu() -> None:
    with pytest.raises(SwapError, match=r"\(4000 bytes\): the value is in host memory already. Set swap.store to disk"):
        offload(VALUE, store="host")


def test_a_store_that_does_not_exist() -> None:
    with pytest.raises(SwapError, match=r"there is no store 'tape'. Set swap.store to auto, host or disk"):
        offload(VALUE, store="tape")


def test_errors_keep_no_files_open(tmp_path: Path) -> None:
    files = open_files()
    for number in range(20):
        with pytest.raises(SwapError):
            offload(VALUE, tmp_path / str(number))
    assert open_files() == files
