#!/usr/bin/env bash
# Compare nine attention backends on real text and a recall task: a table here, runs/demo/report.html, W&B runs offline.
# Further settings are passed on: scripts/demo.sh seeds=[0,1,2]
source "$(dirname "$0")/env.sh"
exec .venv/bin/attnzoo compare experiment=demo run_dir=runs/demo "$@"
