"""The comparison `bench/compare checkpoint`: saving and restoring 4 GiB over 4 parameter servers."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from processes import ROOT, CommandProcess, program, python_with, reserve_port

SERVERS, WORKERS = 4, 2
MIB = 2**20
MEMORY_LIMIT = 64  # MiB that a save in mode stream may need in each server.
# The command that saves on our side, the command of the anchor, and the anchor.
SAVES = {"save": ("save_stream", "write", "bare"), "save_copy": ("save_copy", "write", "bare"),
         "save_dcp": ("save_stream", "tuned", "dcp"), "save_dcp_default": ("save_stream", "default", "dcp")}
CASES = ["save", "save_copy", "restore", "steps_while_saving", "stream_memory", "save_dcp", "save_dcp_default"]
ANCHOR_NAMES = {"bare": "bare files, O_DIRECT, 1 thread a file; ours: 2 a server", "tuned": "DCP, thread_count 4, sync_files", "default": "DCP, defaults"}


class OurCluster:
    """Servers and workers as processes, and the client program that saves and trains."""

    def __init__(self, folder, mib):
        self.checkpoints = folder / "ours"
        self.checkpoints.mkdir()
        self.ports = [reserve_port() for _ in range(SERVERS + WORKERS)]
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in self.ports]
        spec = {"ps": addresses[:SERVERS], "worker": addresses[SERVERS:]}
        cluster = folder / "cluster.json"
        cluster.write_text(json.dumps(spec))
        self.servers = []
        for job, tasks in spec.items():
            for task in range(len(tasks)):
                self.servers.append(subprocess.Popen(
                    [program("trireme"), "server", "--job", job, "--task", str(task), "--cluster", str(cluster),
                     "--threads", "1", "--checkpoint-root", str(folder), "--log-level", "warning"]))
        self.client = CommandProcess(program("checkpoint_bench"), json.dumps(spec), str(self.checkpoints), str(mib))

    def wait(self):
        self.client.wait("ready")

    def end(self):
        self.client.end()
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait(20)

    def remove_checkpoints(self):
        for path in self.checkpoints.iterdir():
            shutil.rmtree(path)

    def peaks(self):
        """Returns the most bytes that each parameter server has held since reset_peaks()."""
        return [int(line.split()[1]) * 1024 for server in self.servers[:SERVERS]
                for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines()
                if line.startswith("VmHWM:")]

    def reset_peaks(self):
        for server in self.servers[:SERVERS]:
            pathlib.Path(f"/proc/{server.pid}/clear_refs").write_text("5")


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        sys.exit(f"bench/compare: the caches cannot be dropped: {error}; run the case restore as root")


def python_with_torch():
    """Returns the Python of .venv if it has torch and numpy, or else one that bench/compare installs."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and subprocess.run([str(python), "-c", "import numpy, torch"], stderr=subprocess.DEVNULL).returncode == 0:
        return str(python)
    return python_with("torch", "numpy")


def in_turn(round, ours, anchor):
    """Measures both sides, beginning with the other side in each round, and returns what they measured."""
    if round % 2 == 0:
        first = ours()
        return first, anchor()
    second = anchor()
    return ours(), second


def measure_saves(case, cluster, anchor, mib, rounds, warm):
    save, theirs, _ = SAVES[case]

    def ours():
        os.sync()
        seconds, report = cluster.client.measure(save)
        cluster.remove_checkpoints()
        return seconds, report

    def other():
        os.sync()
        seconds, _ = anchor.measure(theirs)
        anchor.measure("remove")
        return seconds

    for command, measure in [(save, ours), (theirs, other)]:  # Memory that is used for the first time is slower.
        if command not in warm:
            measure()
            warm.add(command)
    for round in range(rounds):
        (seconds, report), their_seconds = in_turn(round, ours, other)
        yield {"case": case, "ours": mib * MIB / 1e9 / seconds, "anchor": mib * MIB / 1e9 / their_seconds, "unit": "GB/s",
               "threads": 1, "anchor_name": ANCHOR_NAMES.get(theirs, ANCHOR_NAMES["bare"]), "also": report}


def measure_restores(cluster, bare, mib, rounds):
    cluster.client.measure("save_copy")
    bare.measure("write")

    def restore():
        drop_caches()
        return cluster.client.measure("restore")[0]

    def read():
        drop_caches()
        return bare.measure("read")[0]

    for round in range(rounds):
        seconds, their_seconds = in_turn(round, restore, read)
        yield {"case": "restore", "ours": mib * MIB / 1e9 / seconds, "anchor": mib * MIB / 1e9 / their_seconds,
               "unit": "GB/s", "threads": 1, "anchor_name": ANCHOR_NAMES["bare"]}
    bare.measure("remove")
    cluster.remove_checkpoints()


def measure_steps(cluster, seconds, rounds):
    """Compares steps while a copy is written with steps without, and reports the stalls of both modes."""
    def during(mode):
        os.sync()
        report = cluster.client.measure(f"steps_while_{mode} {seconds}")[1]
        cluster.remove_checkpoints()
        return report

    if rounds > 2:
        during("copy")
    for round in range(rounds):
        alone, copy = in_turn(round, lambda: cluster.client.measure(f"steps {seconds}")[1]["steps_per_second"],
                              lambda: during("copy"))
        stream = during("stream")
        also = {f"{mode}_{name}": value for mode, report in [("copy", copy), ("stream", stream)]
                for name, value in report.items()}
        yield {"case": "steps_while_saving", "ours": copy["steps_per_second"], "anchor": alone, "unit": "1/s",
               "threads": 1, "anchor_name": "the same steps without a save", "also": also}


def measure_memory(cluster, seconds, rounds):
    """Compares the memory that a stream needs in a server that is trained with the limit; less is better."""
    for _ in range(rounds):
        cluster.reset_peaks()
        cluster.client.measure(f"steps {seconds}")
        before = cluster.peaks()
        cluster.reset_peaks()
        report = cluster.client.measure(f"steps_while_stream {seconds}")[1]
        extra = max(after - peak for after, peak in zip(cluster.peaks(), before))
        cluster.remove_checkpoints()
        yield {"case": "stream_memory", "ours": max(extra / MIB, 0.1), "anchor": MEMORY_LIMIT, "unit": "MiB", "threads": 1,
               "inverse": True, "anchor_name": "the limit", "also": {"extra_mib_reported": report["extra_mib"]}}


def checkpoint(cases, quick, rounds):
    """save save_copy (in mode stream, and in mode copy) against bare writing of the same number of files; restore
               against bare reading, caches dropped (as root); save_dcp save_dcp_default against
               torch.distributed.checkpoint with 4 ranks; steps_while_saving: steps of an MLP while a copy is written
               against steps without; stream_memory: memory that a stream needs in a server, against a limit of 64 MiB.
               4 GiB over 4 servers, with 2 workers, as processes; 512 MiB with --quick"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    left_out = "save_copy" if quick and not cases else ""  # So that --quick ends within a minute.
    cases = [case for case in CASES if (not cases and case != left_out) or case in cases]
    mib = 512 if quick else 4096
    rounds = rounds or (2 if quick else 7)
    seconds = 0.3 if quick else 10  # Time for which steps are measured.
    entries, warm = [], set()  # Commands that have run.
    build = ROOT / "build"  # On a disk, unlike the folder for temporary files of some machines.
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=build, prefix="bench-checkpoint-")))
        cluster = OurCluster(folder, mib)
        stack.callback(cluster.end)
        bare = CommandProcess(program("bare_files"), str(folder), str(SERVERS), str(mib * MIB // SERVERS))
        stack.callback(bare.end)
        dcp = None
        if any(SAVES.get(case, ("", "", ""))[2] == "dcp" for case in cases):  # It starts while the cluster does.
            dcp = CommandProcess(python_with_torch(), str(ROOT / "bench" / "anchors" / "dcp.py"), str(folder),
                                 str(mib // SERVERS))
            stack.callback(dcp.end)
        cluster.wait()
        bare.wait("ready")
        if dcp:
            dcp.wait("ready")
        for case in cases:
            if case == "restore":
                entries += measure_restores(cluster, bare, mib, rounds)
            elif case == "steps_while_saving":
                entries += measure_steps(cluster, seconds, 1 if quick else rounds)
            elif case == "stream_memory":
                entries += measure_memory(cluster, seconds, 1 if quick else rounds)
            else:
                entries += measure_saves(case, cluster, dcp if SAVES[case][2] == "dcp" else bare, mib, rounds, warm)
    return "bare files", entries
