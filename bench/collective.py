"""The comparison `bench/compare collective`: all-reduce of our ranks against ranks of Gloo or TensorFlow."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

from checkpoint import in_turn, python_with_torch
from processes import ROOT, CommandProcess, program, python_with, reserve_port

SIZES = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "25MiB": 25 << 20, "64MiB": 64 << 20, "256MiB": 256 << 20}
ANCHORS = ROOT / "bench" / "anchors"

# The implementation of our side, the ranks, the place where both sides run, and the anchor.
KINDS = {"shm": ("shm", 2, "loopback", "Gloo"), "shm_copy": ("shm_copy", 2, "loopback", "Gloo"),
         "shm_x4": ("shm", 4, "loopback", "Gloo"), "shm_copy_x4": ("shm_copy", 4, "loopback", "Gloo"),
         "ring": ("ring", 2, "hosts", "Gloo"), "ring_tls": ("ring", 2, "hosts with certificates", "Gloo"),
         "tf_ring": ("ring", 2, "loopback", "TensorFlow")}


def case_name(kind, size):
    base, four, _ = kind.partition("_x4")
    return f"{base}_{size}{four}"


CASES = {case_name(kind, size): (kind, size) for kind in KINDS for size in SIZES}
QUICK = ["shm_4KiB", "shm_1MiB", "shm_25MiB", "shm_25MiB_x4", "shm_copy_25MiB", "ring_4KiB", "ring_1MiB", "ring_25MiB"]


def calls_for(size):
    return 300 if size <= 64 << 10 else 50 if size <= 1 << 20 else 10 if size < 256 << 20 else 4


class Hosts:
    """Network namespaces that are joined by a pair of virtual Ethernet devices. They vanish with their processes."""

    def __init__(self):
        if os.geteuid() != 0:
            sys.exit("bench/compare: the cases ring_… make network namespaces; run them as root")
        self.processes = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in self.processes:
            if process.stdout.readline() != "ready\n":
                sys.exit("bench/compare: unshare could not make a network namespace; the cases ring_… need CAP_SYS_ADMIN")
        one, other = (str(process.pid) for process in self.processes)
        self.run(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other)
        for rank, address in enumerate(self.addresses()):
            self.run(rank, "ip", "address", "add", address + "/24", "dev", "eth0")
            self.run(rank, "ip", "link", "set", "eth0", "up")
            self.run(rank, "ip", "link", "set", "lo", "up")

    @staticmethod
    def addresses():
        return ["10.77.0.1", "10.77.0.2"]

    def on(self, rank, *command):
        return ["nsenter", f"--net=/proc/{self.processes[rank].pid}/ns/net", "--", *command]

    def run(self, rank, *command):
        subprocess.run(self.on(rank, *command), check=True)

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(20)


class Ranks:
    """Processes that execute the same commands together."""

    def __init__(self, stack, commands):
        self.processes = []
        for command in commands:
            self.processes.append(CommandProcess(*command))
            stack.callback(self.processes[-1].end)

    def wait(self, line):
        return [process.wait(line) for process in self.processes]

    def reduce(self, command):
        """Lets all ranks execute a command, and returns the report of rank 0."""
        for process in self.processes[1:]:
            process.process.stdin.write(command + "\n")
            process.process.stdin.flush()
        _, report = self.processes[0].measure(command)
        for process in self.processes[1:]:
            process.wait("done")
        return report


def start_sides(stack, ranks, place, anchor):
    """Starts the ranks of both sides, and returns them when they are ready."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    if place == "loopback":
        ports = [reserve_port() for _ in range(2 * ranks)]
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
        ours, theirs, interface = addresses[:ranks], addresses[ranks:], "lo"
        stack.callback(lambda: [port.close() for port in ports])

        def on(rank, *command):
            return command
    else:
        hosts = Hosts()
        stack.callback(hosts.end)
        ours, theirs, interface, on = [f"{host}:5000" for host in hosts.addresses()], [], "eth0", hosts.on
    bench = program("collective_bench")
    certificates = []
    if place == "hosts with certificates":
        certificates = [str(folder / "certificates")]
        subprocess.run([bench, "--certificates", *certificates, ",".join(ours)], check=True)
    sides = [Ranks(stack, [on(rank, bench, ",".join(ours), str(rank), *certificates) for rank in range(ranks)])]
    if anchor == "TensorFlow":
        python = python_with("tensorflow-cpu")
        commands = [[python, str(ANCHORS / "tf_allreduce.py"), ",".join(theirs), str(rank)] for rank in range(ranks)]
    else:
        python = python_with_torch()
        commands = [on(rank, python, str(ANCHORS / "gloo_allreduce.py"), str(rank), str(ranks), str(folder / "rendezvous"),
                       interface) for rank in range(ranks)]
    sides.append(Ranks(stack, commands))
    for side in sides:
        side.wait("ready")
    return sides


def measure(case, kind, size, ours, anchor, quick, rounds):
    implementation, ranks, _, anchor_name = KINDS[kind]
    bytes, calls = SIZES[size], max(3, calls_for(SIZES[size]) // (3 if quick else 1))
    for round in range(rounds or (5 if quick or bytes > 25 << 20 else 15)):
        our, their = in_turn(round, lambda: ours.reduce(f"{implementation} {bytes} {calls}"),
                             lambda: anchor.reduce(f"{bytes} {calls}"))
        yield {"case": case, "ours": bytes / our["median"] / 1e9, "anchor": bytes / their["median"] / 1e9, "unit": "GB/s",
               "threads": 1, "anchor_name": f"{anchor_name}, {ranks} ranks",
               "also": {"us": our["median"] * 1e6, "anchor_us": their["median"] * 1e6, "mean_us": our["mean"] * 1e6,
                        "anchor_mean_us": their["mean"] * 1e6}}


def collective(cases, quick, rounds):
    """the median all-reduce of float32, for the sizes 4KiB 64KiB 1MiB 25MiB 64MiB 256MiB: shm_SIZE, buffers in shared
               memory, and shm_copy_SIZE, any tensor, against Gloo, 2 ranks; shm_SIZE_x4 shm_copy_SIZE_x4, 4 ranks;
               ring_SIZE against Gloo, and ring_tls_SIZE with certificates against Gloo without, each rank in its own
               network namespace (as root); tf_ring_SIZE, our ring over loopback against TensorFlow's RING. --quick
               measures some of them"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    cases = cases or (QUICK if quick else list(CASES))
    entries = []
    for setting in dict.fromkeys(KINDS[CASES[case][0]][1:] for case in cases):
        with contextlib.ExitStack() as stack:
            ours, anchor = start_sides(stack, *setting)
            for case in cases:
                kind, size = CASES[case]
                if KINDS[kind][1:] == setting:
                    entries += measure(case, kind, size, ours, anchor, quick, rounds)
    return "Gloo or TensorFlow", entries
