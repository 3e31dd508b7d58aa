"""One process a folder: a lock on a file in it, which ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from attnzoo.errors import RequestError

LOCK = ".lock"
RETRY_SECONDS = 0.05


@contextmanager
def locked(folder: Path, patience: float = 0.2) -> Iterator[None]:
    """Hold ``folder``, made where it is missing, while the block runs; an unused one that was made is removed again.

    Args:
        patience: seconds to wait for a holder that is about to end.

    Raises:
        RequestError: another holds it (or this process in another place): its id is named; or it cannot be written.
    """
    made = not folder.exists()
    file = _take(folder, time.monotonic() + patience)
    try:
        yield
    finally:
        if made and [path.name for path in folder.iterdir()] == [LOCK]:
            with suppress(OSError):  # somebody has put something there
                (folder / LOCK).unlink()
                folder.rmdir()
        file.close()


def holder(folder: Path) -> str | None:
    """Who holds ``folder`` now, as in 'process 71'; None when nobody does."""
    with suppress(OSError), open(folder / LOCK, encoding="utf-8") as file:  # no file, or no locks there: nobody can
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named(file)
    return None


def _take(folder: Path, until: float) -> IO[str]:
    """The open lock file, which is the lock."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  held until the work ends
        except OSError as error:
            raise RequestError(f"run_dir={folder} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = _named(file)
            file.close()
            if time.monotonic() > until:
                raise RequestError(f"run_dir={folder} is in use by {who}, which is still running") from None
            time.sleep(RETRY_SECONDS)
            continue
        except OSError as error:
            print(f"{folder} cannot be locked ({error.strerror}): start nothing else in it", file=sys.stderr)
            return file
        if _still_there(file, folder / LOCK):
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            return file
        file.close()  # its last holder has removed it: there may be a new one


def _still_there(file: IO[str], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.fstat(file.fileno()).st_ino == path.stat().st_ino
    return False


def _named(file: IO[str]) -> str:
    file.seek(0)
    pid = file.read(32).strip()
    return f"process {pid}" if pid else "another process"
