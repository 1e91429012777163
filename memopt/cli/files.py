"""Results that go into a file: whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


def check_place(path: Path) -> None:
    """Refuse, before the work, a path at which no file can be written.

    Raises:
        OSError: with ``filename`` set: a folder that is not there, or the path is a folder itself.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory; a file is to be written", str(path))
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {str(folder)!r}", str(path))


def write_file(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8: into a temporary file beside ``path``, which then takes its place.

    An existing file keeps its permissions, a link goes on leading to its file, and a device or a pipe is written to.

    Raises:
        OSError: with ``filename`` set; what was at ``path`` is as it was.
    """
    check_place(path)
    try:
        _write(os.path.realpath(path), text)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write(path: str, text: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as device:
            device.write(text)
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:100]}.", dir=os.path.dirname(path))
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    """What the process takes from the permissions of new files; asking means setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
