"""A worker process of this machine. It is started by its path, never as a module.

So no file of the working folder is taken for a module, and the end of the process that started
it is noticed before anything is imported that takes time.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds between two looks whether the parent is still there.
LOOK_EVERY = 0.5


def main(parent: int) -> None:
    """Do units as the parent asks for them."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    # Last, where it is found if the package is not installed.
    sys.path.append(os.path.dirname(os.path.dirname(HERE)))
    import signal
    import threading

    # An interrupt is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from mergekit_ram.units.engines import serve

    serve()


def _end_with(parent: int) -> None:
    import time

    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    # The unit that this worker was at is done again by the next try.
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
