"""The comparison `bench/compare mirrored`: steps on two logical CPU devices, and steps of two workers of `trireme launch`."""
import contextlib
import json
import os
import subprocess
import sys

from checkpoint import in_turn
from processes import CommandProcess, program

# The command of each case, its global batch, and the steps of a round, which take one to two seconds.
DEVICE_CASES = {"step_25M_local": ("step", 256, 4), "step_25M_local_32": ("step", 32, 20),
                "products_256": ("products", 256, 4), "products_32": ("products", 32, 20)}
CASES = [*DEVICE_CASES, "launched"]
WORKERS = 2
EPOCHS = 10  # of a round of `launched`; an epoch has 32 steps


def mirrored(cases, quick, rounds):
    """step_25M_local: a captured step of an MLP of 25 million parameters (1024, three times 3072, 1024 units), float32,
               SGD, global batch 256, under MirroredStrategy on two logical CPU devices, against the same step in one
               process with two threads; step_25M_local_32: the same with a global batch of 32; products_256
               products_32: only the matrix products of these steps, with LibTorch alone: two threads with half of the
               batch each, against one with the whole batch and two OpenMP threads; launched: fit() of an MLP (784, 64, 10
               units) by the two workers of `trireme launch --mirrored`, against the same with OMP_NUM_THREADS set by hand
               to each worker's share of the cores"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    entries = on_devices([case for case in cases or CASES if case in DEVICE_CASES], rounds or (5 if quick else 25))
    if not cases or "launched" in cases:
        entries += launched(rounds or (3 if quick else 15))
    return "the same step in one process", entries


def on_devices(cases, rounds):
    entries = []
    if not cases:
        return entries
    with contextlib.ExitStack() as stack:
        ours, anchor = (CommandProcess(program("mirrored_bench"), kind) for kind in ("mirrored", "plain"))
        for process in (ours, anchor):
            stack.callback(process.end)
            process.wait("ready")
        for case in cases:
            command, batch, steps = DEVICE_CASES[case]
            for process in (ours, anchor):
                device_speed(process, command, batch, 2)  # Captures the step, or makes the matrices.
            for round in range(rounds):
                (our_speed, loss), (anchor_speed, anchor_loss) = in_turn(
                    round, lambda: device_speed(ours, command, batch, steps),
                    lambda: device_speed(anchor, command, batch, steps))
                entries.append({"case": case, "ours": our_speed, "anchor": anchor_speed, "unit": "1/s", "threads": 2,
                                "also": {} if loss is None else {"loss": loss, "anchor_loss": anchor_loss}})
    return entries


def device_speed(process, command, batch, steps):
    """Returns the steps per second, and the loss of the last step, or None if the command computes none."""
    report = process.measure(f"{command} {batch} {steps}")[1]
    return report["steps"] / report["seconds"], report.get("loss")


def launched(rounds):
    share = max(1, len(os.sched_getaffinity(0)) // WORKERS)
    entries = []
    for round in range(rounds):
        ours, anchor = in_turn(round, lambda: launched_speed({}), lambda: launched_speed({"OMP_NUM_THREADS": str(share)}))
        entries.append({"case": "launched", "ours": ours, "anchor": anchor, "unit": "1/s", "threads": share,
                        "anchor_name": "hand-set threads"})
    return entries


def launched_speed(variables):
    """Returns the steps per second of workers that have these variables, and otherwise no OMP_NUM_THREADS."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [program("trireme"), "launch", "--workers", str(WORKERS), "--mirrored", "--", program("launched_bench"),
               str(EPOCHS)]
    done = subprocess.run(command, env={**environment, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"bench/compare: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    report = json.loads(done.stdout)
    return report["steps"] / report["seconds"]
