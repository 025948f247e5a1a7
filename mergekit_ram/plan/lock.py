"""One merge at a time writes to a folder, or several tasks that share one; among all processes.

The lock is a file in the folder, removed when it is given back. The operating system gives back
those of a killed process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mergekit_ram.errors import InputError

LOG = logging.getLogger("mergekit_ram")

LOCK_NAME = ".mergekit_ram.lock"

TOLD_AFTER = 2.0
"""Seconds of waiting without a word."""

LOOK_EVERY = 0.1
"""Seconds between two tries to take a lock."""


class FolderInUse(InputError):
    """Another merge writes to a folder."""


class FolderLock:
    """The right to write to a folder, until :meth:`release`, or until nobody refers to it.

    A merge's last task refers to it. mergekit writes its last files when all tasks are done.
    """

    def __init__(self, folder: Path, descriptor: int | None, made: tuple[Path, ...]):
        self.folder = folder
        self.thread = weakref.ref(threading.current_thread())
        self.release = weakref.finalize(self, _give_back, folder, descriptor, made, os.getpid())

    @property
    def is_ours(self) -> bool:
        """Whether the merge that took it must be over: a thread merges one at a time."""
        thread = self.thread()
        return thread is None or thread is threading.current_thread() or not thread.is_alive()


_taken: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()
_taking = threading.RLock()


def lock_folder(folder: str, *, shared: bool = False, waits: bool = False) -> FolderLock:
    """Take the right to write to a folder, which is made where there is none.

    Args:
        folder: to write to.
        shared: others may share it, each with files of its own.
        waits: wait until it is free, and say so.

    Raises:
        InputError: another merge writes to it now, or it cannot be written to.
    """
    started = time.monotonic()
    is_told = False
    while True:
        try:
            return _lock_now(folder, shared)
        except FolderInUse:
            if not waits:
                raise
        if not is_told and time.monotonic() - started > TOLD_AFTER:
            LOG.warning("output folder %s: waiting until another merge has written to it", folder)
            is_told = True
        time.sleep(LOOK_EVERY)


def _lock_now(folder: str, shared: bool) -> FolderLock:
    target = Path(folder).resolve()
    with _taking:
        earlier = _taken.get(target)
        if earlier is not None and earlier.release.alive:
            if earlier.is_ours:
                earlier.release()
            elif not shared:
                raise _in_use(folder)
        try:
            made = _make(target)
            lock = FolderLock(target, _acquire(target / LOCK_NAME, folder, shared), made)
        except OSError as error:
            raise InputError(
                f"output folder {folder}: it cannot be written to: {error}. Choose another one."
            ) from None
        _taken[target] = lock
        return lock


def release_folders() -> None:
    """Give back what this thread has taken: its merge is over, well or badly."""
    with _taking:
        for lock in list(_taken.values()):
            if lock.is_ours:
                lock.release()


def release_afterwards(write: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Around the function that writes a merge's last files."""
    try:
        return write(*args, **kwargs)
    finally:
        release_folders()


def _make(target: Path) -> tuple[Path, ...]:
    """Make a folder; returns those that were made, the innermost first."""
    missing = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    return tuple(missing)


def _acquire(path: Path, folder: str, shared: bool) -> int | None:
    """Lock a file that keeps its name meanwhile; None where the file system has no locks."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)  # its last user has just removed it
            continue
        try:
            flock(descriptor, shared)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise _in_use(folder) from None
        except FileNotFoundError:
            pass  # its owner was just removing it
        except (ImportError, OSError) as error:
            LOG.warning(
                "output folder %s cannot be locked (%s): see to it that no other merge "
                "writes to it",
                folder,
                error,
            )
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return None
        os.close(descriptor)


def flock(descriptor: int, shared: bool) -> None:
    """Lock an open file at once; BlockingIOError where others have it."""
    import fcntl  # which Windows lacks

    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _give_back(folder: Path, descriptor: int | None, made: tuple[Path, ...], process: int) -> None:
    """Remove the lock, and the folders that were made for nothing."""
    if os.getpid() != process:
        return
    if descriptor is not None:
        # Removed by its last user alone, while it is held, so that nobody else's is removed.
        with suppress(OSError):
            flock(descriptor, shared=False)
            (folder / LOCK_NAME).unlink()
        os.close(descriptor)
    for empty in made:
        with suppress(OSError):
            empty.rmdir()


def _in_use(folder: str) -> FolderInUse:
    return FolderInUse(
        f"output folder {folder}: another merge is writing to it. Wait until it is done, or "
        "choose another folder."
    )
