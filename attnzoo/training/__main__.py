"""``python -m attnzoo.training FOLDER``: train what FOLDER/config.yaml says. What a comparison starts for each cell."""

from __future__ import annotations

import os
import sys
import threading
import time

from attnzoo.errors import AttnzooError


def main(folder: str) -> int:
    """Exit status: 0 when a record was written, whatever it says; 2 for a wrong request."""
    end_with_parent()
    from attnzoo.training import train
    from attnzoo.training.config import load_config

    try:
        train(load_config(folder))
    except AttnzooError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return 0


def end_with_parent() -> None:
    """A comparison that is killed must not leave cells running that its next start would collide with."""
    parent = os.environ.get("ATTNZOO_PARENT")
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
