"""The comparison `bench/compare train`: epochs of 2,000 steps of Model::fit(), against Keras and against a loop by hand."""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

from checkpoint import in_turn, python_with_torch
from processes import ROOT, CommandProcess, program, python_with, reserve_port

ANCHORS = ROOT / "bench" / "anchors"
WORKERS, SERVERS = 3, 2
TF_NAME = "TensorFlow 2.21, tf-keras, 3 workers + 2 ps"
# The cases in one process come first: the clusters of the others must not share the cores with them.
CASES = ["fit_local", "fit_keras", "fit", "fit_callbacks"]


class Programs:
    """The processes that train, which are started at their first use."""

    def __init__(self, stack, folder, quick):
        self.stack, self.folder, self.quick, self.started = stack, folder, quick, {}

    def start(self, name, *command):
        if name not in self.started:
            self.started[name] = CommandProcess(*command)
            self.stack.callback(self.started[name].end)
            self.started[name].wait("ready")
        return self.started[name]

    def local(self):
        return self.start("local", program("train_bench"))

    def cluster(self):
        if "cluster" not in self.started:
            ports = [reserve_port() for _ in range(WORKERS + SERVERS)]
            addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
            spec = {"worker": addresses[:WORKERS], "ps": addresses[WORKERS:]}
            file = self.folder / "cluster.json"
            file.write_text(json.dumps(spec))
            for job, tasks in spec.items():
                for task in range(len(tasks)):
                    self.stack.callback(end_server, subprocess.Popen(
                        [program("trireme"), "server", "--job", job, "--task", str(task), "--cluster", str(file),
                         "--threads", "1", "--log-level", "warning"]))
            self.start("cluster", program("train_bench"), ",".join(spec["worker"]), ",".join(spec["ps"]))
        return self.started["cluster"]

    def tensorflow(self):
        return self.start("tensorflow", python_with("tf-keras", "tensorboard"), str(ANCHORS / "tf_keras_fit.py"))

    def keras(self):
        [torch] = pathlib.Path(python_with_torch()).parent.parent.glob("lib/python*/site-packages")
        return self.start("keras", python_with("keras"), str(ANCHORS / "keras_torch_fit.py"), str(torch))


def end_server(server):
    server.terminate()
    server.wait(20)


class Side:
    """One side of a case: a process, the command that trains, and its epochs per round."""

    def __init__(self, process, command, epochs, folder=""):
        self.process, self.command, self.epochs, self.folder = process, command, epochs, folder

    def speed(self, steps, epochs=None):
        """Returns the steps per second, and the loss of the last epoch."""
        report = self.process.measure(f"{self.command} {steps} {epochs or self.epochs} {self.folder}".rstrip())[1]
        return report["steps"] / report["seconds"], report["loss"]


def sides_of(case, programs):
    """Returns our side, the anchor's side and the anchor's name. Our epochs are shorter, so a round has more of them."""
    if case == "fit":
        return Side(programs.cluster(), "fit", 5), Side(programs.tensorflow(), "fit", 1), TF_NAME
    if case == "fit_callbacks":
        return (Side(programs.cluster(), "fit_callbacks", 5, programs.folder / "ours"),
                Side(programs.tensorflow(), "fit_callbacks", 1, programs.folder / "theirs"),
                TF_NAME + ", CSVLogger and TensorBoard")
    if case == "fit_keras":
        keras, name = programs.keras(), "Keras 3 on the torch backend"
        if programs.quick:
            return Side(programs.local(), "fit_local", 5), Side(keras, "fit", 1), name
        return Side(programs.local(), "fit_local", 5), Side(keras, "fit_jit", 1), name + ", jit_compile"
    return Side(programs.local(), "fit_local", 2), Side(programs.local(), "loop", 2), "the same captured loop by hand"


def measure_case(case, programs, steps, rounds):
    ours, anchor, anchor_name = sides_of(case, programs)
    # One more side without the callbacks, or without compilation, to be reported.
    plain = None
    if case == "fit_callbacks":
        plain = ("ours_without_callbacks", Side(ours.process, "fit", ours.epochs))
    elif anchor.command == "fit_jit":
        plain = ("anchor_without_jit", Side(anchor.process, "fit", anchor.epochs))
    for side in (ours, anchor):
        side.speed(20, 1)  # Captures or traces the step.
    for round in range(rounds):
        (speed, loss), (anchor_speed, anchor_loss) = in_turn(round, lambda: ours.speed(steps), lambda: anchor.speed(steps))
        also = {"loss": loss, "anchor_loss": anchor_loss}
        if plain:
            also[plain[0]] = plain[1].speed(steps)[0]
        yield {"case": case, "ours": speed, "anchor": anchor_speed, "unit": "1/s", "threads": 1, "anchor_name": anchor_name,
               "also": also}


def train(cases, quick, rounds):
    """fit (3 workers + 2 ps as processes, one dense layer, 10 steps in an execution) against tf-keras on TensorFlow's
               parameter servers; fit_callbacks: the same with a CSV log and TensorBoard on both sides; fit_keras (one
               process, the net of step_mlp) against Keras 3 on the torch backend, compiled except with --quick; fit_local:
               the same net against the same captured loop by hand. Epochs of 2,000 steps, or 200 with --quick; one thread
               for each task"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    entries = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-train-")))
        for name in ("ours", "theirs"):
            (folder / name).mkdir()
        programs = Programs(stack, folder, quick)
        for case in [case for case in CASES if case in (cases or CASES)]:
            rounds_of_case = {"fit_local": 15, "fit_keras": 7}.get(case, 3)  # An epoch of TensorFlow takes half a minute.
            entries += measure_case(case, programs, 200 if quick else 2000, rounds or (3 if quick else rounds_of_case))
    return "Keras", entries
