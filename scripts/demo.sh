#!/usr/bin/env bash
# Compare nine attention backends on real text and a recall task: a table here, runs/demo/report.html, W&B runs offline.
# The window is narrower than any period of the recall task. Further settings are passed on, and take the place of these:
# scripts/demo.sh seeds=[0,1,2] jobs=1
source "$(dirname "$0")/env.sh"
settings=(experiment=demo)
for setting in jobs=2 options.sliding_window.window=16 run_dir=runs/demo; do
  [[ " $*" == *" ${setting%%=*}="* ]] || settings+=("$setting")
done
exec .venv/bin/attnzoo compare "${settings[@]}" "$@"
