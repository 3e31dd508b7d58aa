"""``python -m attnzoo.training FOLDER``: train what FOLDER/config.yaml says. What a comparison starts for each cell."""

from __future__ import annotations

import sys

from attnzoo.errors import AttnzooError
from attnzoo.processes import end_with_parent


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
