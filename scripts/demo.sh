#!/usr/bin/env bash
# Compare nine attention backends on real text and a recall task: a table here, runs/demo/report.html, W&B runs offline.
# The window is narrower than any period of the recall task. Further settings are passed on: scripts/demo.sh seeds=[0,1,2]
source "$(dirname "$0")/env.sh"
exec .venv/bin/attnzoo compare experiment=demo jobs=2 options.sliding_window.window=16 run_dir=runs/demo "$@"
