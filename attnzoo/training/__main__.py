"""``python -m attnzoo.training FOLDER``: train what FOLDER/config.yaml says. What a comparison starts for each cell."""

from __future__ import annotations

import json
import signal
import sys
import traceback

from attnzoo.errors import AttnzooError, Stopped
from attnzoo.processes import end_with_parent, show_stacks


def main(folder: str, config: str = "") -> int:
    """Exit status: 0 when a record was written, whatever it says; 2 for a wrong request.

    Args:
        config: ``-`` reads the configuration from standard input, as JSON; it may hold what no file keeps.
    """
    end_with_parent()
    show_stacks()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script would ignore it
    from attnzoo.from_files import load_code
    from attnzoo.training import train
    from attnzoo.training.config import from_dict, load_config
    from attnzoo.training.wandb_run import leave_agent

    leave_agent()
    try:
        cfg = from_dict(json.load(sys.stdin)) if config == "-" else load_config(folder)
        load_code(cfg.code, allowed=config == "-")  # whoever started this process has named it
        train(cfg, cell=True)
    except AttnzooError as error:
        print(error.whole, file=sys.stderr)  # this is the cell's log, which keeps all
        return error.exit_status
    except KeyboardInterrupt as stop:
        print(str(stop), file=sys.stderr)
        return stop.exit_status if isinstance(stop, Stopped) else 130
    except SystemExit:  # whoever raised it, the cell's log says where
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
