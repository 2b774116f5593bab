"""The comparison `bench/compare ddp`: steps of two workers that train together, against PyTorch's DistributedDataParallel."""
import contextlib
import pathlib
import sys
import tempfile

from checkpoint import in_turn, python_with_torch
from collective import ANCHORS, Ranks
from processes import program, reserve_port

RANKS = 2
# The net of each case, the batch of each process, and the steps of a round.
CASES = {"step_25M": ("mlp", 32, 10), "step_resnet": ("resnet", 8, 2)}


def ddp(cases, quick, rounds):
    """a step on two processes with one thread each, float32, SGD: step_25M, an MLP of 25 million parameters (1024, three
               times 3072, 1024 units), batch of 32 in each process; step_resnet, the layers of a ResNet-50 on images of
               112 x 112, batch of 8 in each process; MultiWorkerMirroredStrategy against PyTorch's
               DistributedDataParallel with Gloo. hidden is the share of our communication that was hidden behind
               compute, in the traces of some more steps"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    entries = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = [reserve_port() for _ in range(RANKS)]
        stack.callback(lambda: [port.close() for port in ports])
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
        ours = Ranks(stack, [(program("ddp_bench"), str(rank), *addresses) for rank in range(RANKS)])
        anchor = Ranks(stack, [(python_with_torch(), str(ANCHORS / "torch_ddp.py"), str(rank), str(RANKS),
                                str(folder / "rendezvous")) for rank in range(RANKS)])
        for side in (ours, anchor):
            side.wait("ready")

        def speed(side, net, batch, steps):
            report = side.reduce(f"step {net} {batch} {steps}")
            return steps / report["seconds"], report["loss"]

        for case in cases or CASES:
            net, batch, steps = CASES[case]
            for side in (ours, anchor):
                speed(side, net, batch, 2)  # Captures the step.
            measured = []
            for round in range(rounds or (3 if quick else 15)):
                (our_speed, loss), (their_speed, their_loss) = in_turn(
                    round, lambda: speed(ours, net, batch, steps), lambda: speed(anchor, net, batch, steps))
                measured.append({"case": case, "ours": our_speed, "anchor": their_speed, "unit": "1/s", "threads": 1,
                                 "also": {"loss": loss, "anchor_loss": their_loss}})
            hidden = ours.reduce(f"trace {net} {batch} 5")["hidden"]  # After the rounds, since these steps train on.
            for entry in measured:
                entry["also"]["hidden"] = hidden
            entries += measured
    return "PyTorch DDP with Gloo", entries
