"""The comparison `bench/compare mirrored`: a step on two logical CPU devices, against one process with two threads."""
import contextlib
import sys

from checkpoint import in_turn
from processes import CommandProcess, program

# The command of each case, its global batch, and the steps of a round, which take one to two seconds.
CASES = {"step_25M_local": ("step", 256, 4), "step_25M_local_32": ("step", 32, 20),
         "products_256": ("products", 256, 4), "products_32": ("products", 32, 20)}


def speed(process, command, batch, steps):
    """Returns the steps per second, and the loss of the last step, or None if the command computes none."""
    report = process.measure(f"{command} {batch} {steps}")[1]
    return report["steps"] / report["seconds"], report.get("loss")


def mirrored(cases, quick, rounds):
    """step_25M_local: a captured step of an MLP of 25 million parameters (1024, three times 3072, 1024 units), float32,
               SGD, global batch 256, under MirroredStrategy on two logical CPU devices, against the same step in one
               process with two threads; step_25M_local_32: the same with a global batch of 32; products_256
               products_32: only the matrix products of these steps, with LibTorch alone: two threads with half of the
               batch each, against one with the whole batch and two OpenMP threads"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    entries = []
    with contextlib.ExitStack() as stack:
        ours, anchor = (CommandProcess(program("mirrored_bench"), kind) for kind in ("mirrored", "plain"))
        for process in (ours, anchor):
            stack.callback(process.end)
            process.wait("ready")
        for case in cases or CASES:
            command, batch, steps = CASES[case]
            for process in (ours, anchor):
                speed(process, command, batch, 2)  # Captures the step, or makes the matrices.
            for round in range(rounds or (5 if quick else 25)):
                (our_speed, loss), (anchor_speed, anchor_loss) = in_turn(
                    round, lambda: speed(ours, command, batch, steps), lambda: speed(anchor, command, batch, steps))
                entries.append({"case": case, "ours": our_speed, "anchor": anchor_speed, "unit": "1/s", "threads": 2,
                                "also": {} if loss is None else {"loss": loss, "anchor_loss": anchor_loss}})
    return "the same step in one process", entries
