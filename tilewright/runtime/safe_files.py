"""Files kept between processes: machine code and data that a program will trust later.

Machine code from a cache runs, so nobody but the user may be able to put it there:

- `private_folder` gives the folder to use.  It creates it with mode 0700; one that others could write to, or could
  replace, is not used: a warning says why, and a folder of this process stands in for it.
- `read` refuses files of another owner, files that others may write to, and anything that is no regular file.
- `write` shows other processes the whole file or nothing.  What a killed writer leaves is found by `leftovers`.
- `replacing` does the same for files that users name, and removes what killed writers of such a file have left.

The owner may be root: it can change any file in any case.  On Windows, folders of a user are private by default, and
nothing is checked.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("tilewright.cache")

HAS_LOCKS = fcntl is not None
TEMPORARY = ".write-"  # how names of files begin that are being written
_EARLIER = (".host-", "host-", ".timings-")  # names that earlier versions wrote and that nothing reads any more
_ABANDONED = 3600.0  # seconds after which a temporary file belongs to nobody, where locks tell nothing
_RANDOM_BYTES = 8  # of the name under which a file that a user named is written
_LARGEST_FILE = 1 << 30  # bytes of a file that is read
_LONGEST_WAIT = 60.0  # seconds for other processes that do the same
_BETWEEN_LOOKS = 0.005

_substitutes: dict[str, Path] = {}  # folders that are not private -> the one used instead in this process
_checked: dict[str, tuple[int, int, int, int]] = {}  # folders found private -> their state then
_swept: set[str] = set()  # folders whose leftovers this process has removed
_complained: set[str] = set()  # what this process has warned of
_given_up: set[str] = set()  # files that this process waits for no more


def private_folder(directory: Path, create: bool = False) -> Path:
    """The folder to keep files in for `directory`: itself when nobody else may write there, else a temporary one.

    With `create` it is made, mode 0700, if it is missing; raises `OSError` when the system refuses that.
    """
    name = os.fspath(directory)
    if name in _substitutes:
        return _substitutes[name]
    try:
        status = os.stat(name)
    except OSError:
        if not create:
            return directory  # nothing to read there
        _create(directory)
        status = os.stat(name)
    if not stat.S_ISDIR(status.st_mode):
        if create:
            raise NotADirectoryError(f"{name} is no folder")
        return directory
    state = (status.st_ino, status.st_mode, status.st_uid, status.st_dev)
    if _checked.get(name) == state:
        return directory
    reason = why_not_private(directory)
    if reason is None:
        _checked[name] = state
        return directory
    substitute = _substitutes[name] = Path(tempfile.mkdtemp(prefix="tilewright-"))
    atexit.register(_remove_substitute, substitute, os.getpid())
    logger.warning(
        "the cache folder %s is not used: %s. Kernels are compiled again in each process until "
        "TILEWRIGHT_CACHE_DIRECTORY names a folder that only you may write to",
        directory, reason,
    )  # fmt: skip
    return substitute


def why_not_private(directory: Path) -> str | None:
    """Why others could put files into an existing folder; None when they cannot."""
    if not hasattr(os, "getuid"):
        return None
    path = Path(os.path.abspath(directory))
    for place in {*(path, *path.parents), *((real := path.resolve()), *real.parents)}:
        try:
            status = os.lstat(place)
        except OSError as error:
            return f"{place} cannot be examined ({error.strerror})"
        if status.st_uid not in (0, os.getuid()):
            return f"{place} belongs to another user (number {status.st_uid})"
        if not stat.S_ISDIR(status.st_mode):
            if stat.S_ISLNK(status.st_mode):
                continue  # the owner is ours; where it leads is examined as well
            return f"{place} is no folder"
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if place == real and others:
            return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o}); run: chmod 700 {place}"
        if others and not status.st_mode & stat.S_ISVTX and not _own_group(status, others):
            return f"others may rename it, since {place} has mode {stat.S_IMODE(status.st_mode):o}"
    return None


def _own_group(status: os.stat_result, others: int) -> bool:
    """Whether those who may write are a group of this user alone, by the convention that it has the user's number."""
    return not others & stat.S_IWOTH and status.st_gid == os.getgid() == os.getuid()


def _create(directory: Path) -> None:
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    for place in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            place.mkdir(mode=0o700)


def _remove_substitute(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not a child that was forked off
        shutil.rmtree(folder, ignore_errors=True)


def read(path: Path) -> bytes | None:
    """The contents of a file; None when there is none or when it must not be trusted, which is logged once."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        with os.fdopen(handle, "rb", buffering=0) as file:
            reason = _why_not_trusted(os.fstat(handle))
            if reason is None:
                return file.read()
    except OSError:  # a folder, a failing disk
        return None
    if str(path) not in _complained:
        _complained.add(str(path))
        logger.warning("the cache file %s is not used: %s", path, reason)
    return None


def _why_not_trusted(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_size > _LARGEST_FILE:
        return f"it has {status.st_size} bytes, more than {_LARGEST_FILE}"
    if hasattr(os, "getuid"):
        if status.st_uid not in (0, os.getuid()):
            return f"it belongs to another user (number {status.st_uid})"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def write(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file of the cache, which other processes see whole or not at all; raises `OSError`.

    Without `durable` a power failure may leave a file with other contents: for files that are verified when read.
    """
    _create(path.parent)
    if str(path.parent) not in _swept:
        _swept.add(str(path.parent))
        remove_leftovers(path.parent, below=False)
    try:
        _replace(path, data, durable)
    except FileNotFoundError:  # a cleaner took the file for abandoned, before it was locked
        _create(path.parent)
        _replace(path, data, durable)


def complain(directory: Path, error: OSError) -> None:
    """Warn, once for each folder and reason, that a file of the cache cannot be written."""
    reason = error.strerror or str(error)
    if f"{directory}: {reason}" in _complained:
        return
    _complained.add(f"{directory}: {reason}")
    logger.warning(
        "cannot write to the cache folder %s (%s). What is missing there is made again in each process; if that takes "
        "too long, let TILEWRIGHT_CACHE_DIRECTORY name a folder that you may write to",
        directory, reason,
    )  # fmt: skip


def _replace(path: Path, data: bytes, durable: bool) -> None:
    reason = why_not_replaceable(path)
    if reason is not None:
        raise OSError(reason)
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    with _becoming(path, handle, temporary, durable) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file, of `mode` less the umask, that takes the place of `path` in one step when the block has ended.

    Without an error in the block it is on the disk then; with one nothing has changed.  Files that killed writers of
    the same path left more than an hour ago are removed.  Raises `OSError`, also for what would replace a device or a
    pipe.
    """
    reason = why_not_replaceable(path)
    if reason is not None:
        raise OSError(reason)
    _remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with _becoming(path, os.open(temporary, flags, mode), temporary, durable=True) as file:
        yield file


@contextmanager
def _becoming(path: Path, handle: int, temporary: str | Path, durable: bool) -> Iterator[BinaryIO]:
    """A file under another name, locked, that is renamed to `path` when the block ends, or removed."""
    try:
        with os.fdopen(handle, "wb") as file:
            _lock(handle)
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
            if fcntl is not None:  # renamed while it is locked: no moment when it looks abandoned
                os.replace(temporary, path)
        if fcntl is None:  # Windows renames no open file
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _remove_abandoned(path: Path) -> None:
    """Remove this user's own files that `replacing` of the same path, killed more than an hour ago, left."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}")
    for other in files(path.parent, below=False):
        if not name.fullmatch(other.name):
            continue
        with suppress(OSError):
            status = other.lstat()
            own = stat.S_ISREG(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())
            old = time.time() - status.st_mtime > _ABANDONED
            if own and old and not (HAS_LOCKS and _is_being_written(other)):
                other.unlink()


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """A file, open for appending (and reading) and made if it is missing, which nobody else has in this way meanwhile.

    Raises `OSError`.  Where the system has no locks others may have it.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        handle = os.open(path, flags, 0o644)
        try:
            _lock(handle, wait=True)
            if not HAS_LOCKS or _is_at(handle, path):  # else it was replaced while this one waited
                yield handle
                return
        finally:
            os.close(handle)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Work that processes do one after the other: those that name the same file in a folder of the cache.

    When another process holds the file for a minute (it may hang), the work is done at the same time as that
    process's, with a warning, and this process waits for that file no more.  On a system without locks nobody waits.
    """
    try:
        private_folder(path.parent, create=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        complain(path.parent, error)
        yield
        return
    try:
        _wait(handle, path)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, path: Path) -> None:
    """Lock a file, or give up, for good, after `_LONGEST_WAIT`."""
    name = str(path)
    until = time.monotonic() + (_LONGEST_WAIT if HAS_LOCKS and name not in _given_up else 0.0)
    while not _lock(handle):
        if time.monotonic() >= until:
            if HAS_LOCKS and name not in _given_up:
                _given_up.add(name)
                logger.warning(
                    "another process has held %s for %g s: this one goes on at the same time, and times that both "
                    "measure may be too long. If that process hangs, end it",
                    path, _LONGEST_WAIT,
                )  # fmt: skip
            return
        time.sleep(_BETWEEN_LOOKS)


def _is_at(handle: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.stat(path))
    return False


def why_not_replaceable(path: Path) -> str | None:
    """Why no file may be written to `path`: it exists and is not a file. A link to a file counts as one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    except ValueError as error:  # a name with a NUL, or that the file system cannot spell
        return str(error)
    return None if stat.S_ISREG(mode) else f"{path.name} exists and is not a regular file"


def why_not_readable(path: Path) -> str | None:
    """Why a file cannot be read: there is none, or it is a device, a pipe or a folder, which may have no end."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return str(error.strerror)
    except ValueError as error:
        return str(error)
    return None if stat.S_ISREG(mode) else "it is no regular file"


def _lock(handle: int, wait: bool = False) -> bool:
    """Lock a file; False where another process has and this one does not wait, or where the system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def files(folder: Path, below: bool = True) -> Iterator[Path]:
    """The files of a folder, and of those `below` it; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            if below:
                yield from files(Path(entry.path))
        else:
            yield Path(entry.path)


def leftovers(folder: Path, below: bool = True) -> list[tuple[Path, int]]:
    """Files of a cache folder that killed writers have left, and those of earlier versions: path and size in bytes."""
    found = []
    for path in files(folder, below):
        temporary, earlier = path.name.startswith(TEMPORARY), _is_of_an_earlier_version(path)
        if not (temporary or earlier):
            continue
        try:
            status = path.lstat()
        except OSError:
            continue  # its writer has finished
        if time.time() - status.st_mtime > _ABANDONED or (temporary and not _is_being_written(path)):
            found.append((path, status.st_size))
    return found


def remove_leftovers(folder: Path, below: bool = True) -> tuple[int, int]:
    """Remove what `leftovers` finds; returns how many files, and how many bytes."""
    count = size = 0
    for path, bytes_ in leftovers(folder, below):
        with suppress(OSError):
            path.unlink()
            count, size = count + 1, size + bytes_
    return count, size


def _is_of_an_earlier_version(path: Path) -> bool:
    """Whether a file has a name that earlier versions gave to temporary files, or to descriptions of the CPU."""
    unnamed = len(path.name) == 11 and path.name.startswith("tmp") and "." not in path.name
    return unnamed or path.name.startswith(_EARLIER)


def _is_being_written(path: Path) -> bool:
    """Whether the writer of a temporary file is at work; taken as true where the system has no locks."""
    if fcntl is None:
        return True
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True  # it has finished
    except OSError:
        return False  # a link or the like: no writer makes those
    try:
        return not _lock(handle)
    finally:
        os.close(handle)
