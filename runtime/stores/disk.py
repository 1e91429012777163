"""One file for all values of an engine: without a name from the start, so that nothing is left behind after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile

from .extents import Extents

_BLOCK = 4096
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class DiskArena:
    """A file that is divided among values. ``write`` and ``read`` may run in any thread; for the rest the owner locks.

    The file is opened when the first value comes, and grows only when no gap is large enough. Its blocks are claimed as it
    grows, so that a full disk is told then and not in the middle of a write.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.expanduser(directory)
        self._file: int | None = None
        self._extents = Extents(_BLOCK)

    @property
    def capacity(self) -> int:
        """Bytes of the file."""
        return self._extents.capacity

    def take(self, nbytes: int) -> int:
        """Room for ``nbytes`` > 0: the offset in the file.

        Raises:
            OSError: no such directory, not writable, no file descriptor, or no room on the disk.
        """
        if self._file is None:
            self._file = _open_unnamed(self._directory)
        offset = self._extents.take(nbytes)
        if offset is None:
            lacking = self._extents.lacking(nbytes)
            _claim(self._file, self._extents.capacity, lacking)
            self._extents.grow(lacking)
            offset = self._extents.take(nbytes)
            assert offset is not None
        return offset

    def give_back(self, offset: int) -> None:
        """Give back what ``take`` returned; no write or read of it may be going on."""
        self._extents.give_back(offset)

    def write(self, offset: int, memory: memoryview) -> None:
        """Write ``memory`` at ``offset``. The interpreter lock is not held meanwhile."""
        assert self._file is not None
        done = 0
        while done < len(memory):
            done += _progress(os.pwrite(self._file, memory[done:], offset + done))

    def read(self, offset: int, memory: memoryview) -> None:
        """Fill ``memory`` from ``offset``. The interpreter lock is not held meanwhile."""
        assert self._file is not None
        done = 0
        while done < len(memory):
            done += _progress(os.preadv(self._file, [memory[done:]], offset + done))

    def close(self) -> None:
        """Close the file; what was stored is lost."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.close()


def _progress(nbytes: int) -> int:
    if nbytes == 0:
        raise OSError(errno.EIO, "the file ended early")
    return nbytes


def _open_unnamed(directory: str) -> int:
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed:
        # Where the file system, or the kernel, does not know the flag, the directory itself is opened for writing: EISDIR.
        try:
            return os.open(directory, unnamed | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED | {errno.EISDIR}:
                raise
    file, name = tempfile.mkstemp(prefix="memopt-", dir=directory)
    os.unlink(name)
    return file


def _claim(file: int, begin: int, nbytes: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(file, begin + nbytes)
        return
    try:
        os.posix_fallocate(file, begin, nbytes)
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            os.ftruncate(file, begin + nbytes)
            return
        with contextlib.suppress(OSError):
            os.ftruncate(file, begin)
        raise
