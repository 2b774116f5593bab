#!/usr/bin/env python3
"""Runs the Slurm scripts of docs/deployment.md with stand-ins for srun and scontrol, and checks its systemd unit.

usage: deployment_test.py PAGE BIN EXAMPLES

The scripts run in a network namespace, so that their ports are free. The stand-in for scontrol names two hosts, which
are two addresses of this machine. The stand-in for srun runs a step of one task, or else a rank for each host.

Exit: 0 if the scripts train and the unit is valid, 1 if not, 77 if namespaces are not permitted here.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 120
SKIPPED = 77
INSIDE = "TRIREME_DEPLOYMENT_INSIDE"  # Set once this program runs in a namespace of its own.

SCONTROL = """#!/bin/bash
printf '%s\\n' localhost 127.0.0.2
"""
SRUN = """#!/bin/bash
tasks=2
while [[ $1 == --* ]]; do
  [[ $1 != --ntasks=1 ]] || tasks=1
  shift
done
((tasks > 1)) || exec "$@"
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2 "$@" &
done
wait
"""


def run_script(script, train, folder, path):
    """Runs a script with `train` as its program, and returns what it prints."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "script": script}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "train").unlink(missing_ok=True)
    (folder / "train").symlink_to(train)
    done = subprocess.run(
        ["bash", "script"], cwd=folder, capture_output=True, text=True, timeout=SECONDS,
        env={**os.environ, "PATH": f"{folder}:{path}", "SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_NODELIST": "nodes"})
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    return done.stdout


def check(condition, text):
    if not condition:
        raise RuntimeError(text)


def run_page(page, binaries, examples):
    path = f"{binaries}:{os.environ['PATH']}"
    scripts = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    units = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    check(len(scripts) == 2 and len(units) == 1, f"the page has {len(scripts)} scripts and {len(units)} units")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "any.json").write_text('{"worker": ["a:1", "b:1"], "ps": ["a:2"]}')
        subprocess.run([f"{binaries}/trireme", "certs", "init", "certs", "--cluster", "any.json"], cwd=folder, check=True,
                       capture_output=True)
        output = run_script(scripts[0], examples / "multi_worker_mirrored", folder, path)
        check("2 replicas, final loss 0.0" in output, f"the workers printed\n{output}")
        output = run_script(scripts[1], examples / "train", folder, path)
        check("3 of 3 tasks answer" in output and "epoch 4: loss 0." in output, f"the program printed\n{output}")
        if shutil.which("systemd-analyze"):
            unit = folder / "trireme@worker-0.service"
            unit.write_text(units[0].replace("/opt/trireme/bin", str(binaries)))
            done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
            check(done.returncode == 0 and unit.name not in done.stderr, done.stderr)
    finally:
        shutil.rmtree(folder)


def main():
    if len(sys.argv) != 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        enter = ["unshare", "--net", "--fork", "--kill-child"]
        if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
            print("skipped: this test needs network namespaces (root or CAP_SYS_ADMIN)")
            return SKIPPED
        return subprocess.run([*enter, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}).returncode
    page, binaries, examples = sys.argv[1:]
    try:
        run_page(Path(page).read_text(), Path(binaries).resolve(), Path(examples).resolve())
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(error)
        return 1
    print("both scripts train, and the unit is valid")
    return 0


if __name__ == "__main__":
    sys.exit(main())
