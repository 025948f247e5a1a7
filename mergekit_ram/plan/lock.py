"""One merge at a time writes to a folder, among all processes and threads.

The lock is a file in the folder, removed when it is given back. The operating system gives back
those of a killed process.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock

from mergekit_ram.errors import InputError

LOG = logging.getLogger("mergekit_ram")

LOCK_NAME = ".mergekit_ram.lock"
ATTEMPTS = 100
"""To meet a lock's file that its owner is not just removing."""


class FolderLock:
    """The right to write to a folder, until :meth:`release`, or until nobody refers to it.

    A merge's last task refers to it. mergekit writes its last files when all tasks are done.
    """

    def __init__(self, folder: Path, handle: filelock.BaseFileLock | None, made: tuple[Path, ...]):
        self.folder = folder
        self.thread = weakref.ref(threading.current_thread())
        self.release = weakref.finalize(self, _give_back, folder, handle, made, os.getpid())

    @property
    def is_ours(self) -> bool:
        """Whether the merge that took it must be over: a thread merges one at a time."""
        thread = self.thread()
        return thread is None or thread is threading.current_thread() or not thread.is_alive()


_taken: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()
_taking = threading.RLock()


def lock_folder(folder: str) -> FolderLock:
    """Take the right to write to a folder, which is made where there is none.

    Raises:
        InputError: another merge writes to it now, or it cannot be written to.
    """
    target = Path(folder).resolve()
    with _taking:
        earlier = _taken.get(target)
        if earlier is not None and earlier.release.alive:
            if not earlier.is_ours:
                raise _is_written_to(folder)
            earlier.release()
        try:
            made = _make(target)
            lock = FolderLock(target, _acquire(target / LOCK_NAME, folder), made)
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


def _acquire(path: Path, folder: str) -> filelock.BaseFileLock | None:
    """Lock a file that keeps its name meanwhile; None where the file system has no locks."""
    handle = filelock.FileLock(path, timeout=0, thread_local=False)
    for _ in range(ATTEMPTS):
        # As long as it is open, no other file can get its number.
        with path.open("ab") as named:
            number = os.fstat(named.fileno()).st_ino
            try:
                handle.acquire()
            except filelock.Timeout:
                raise _is_written_to(folder) from None
            except (NotImplementedError, OSError) as error:
                LOG.warning(
                    "output folder %s cannot be locked (%s): see to it that no other merge "
                    "writes to it",
                    folder,
                    error,
                )
                path.unlink(missing_ok=True)
                return None
            with suppress(FileNotFoundError):
                if path.stat().st_ino == number:
                    return handle
        handle.release()
    raise _is_written_to(folder)


def _give_back(
    folder: Path, handle: filelock.BaseFileLock | None, made: tuple[Path, ...], process: int
) -> None:
    """Remove the lock, and the folders that were made for nothing."""
    if os.getpid() != process:
        return
    path = folder / LOCK_NAME
    # While it is held, so that nobody else's is removed; Windows removes no open files.
    with suppress(OSError):
        path.unlink()
    if handle is not None:
        handle.release()
    if os.name == "nt":
        with suppress(OSError):
            path.unlink()
    for empty in made:
        with suppress(OSError):
            empty.rmdir()


def _is_written_to(folder: str) -> InputError:
    return InputError(
        f"output folder {folder}: another merge is writing to it. Wait until it is done, or "
        "choose another folder."
    )
