"""The comparison `bench/compare data`: reading files of 200 MB into batches of 1,024 records, with two threads."""
import contextlib
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from checkpoint import python_with_torch
from processes import ROOT, CommandProcess, program, python_with

ANCHORS = ROOT / "bench" / "anchors"
MIB = 2**20
MEMORY_LIMIT = 512  # MiB that the process that reads may have in memory.
MEMORY_BLOCKS = 1000  # Blocks of 10 MB in the file of the case memory.
PROGRAMS = {"csv": ["make_csv_dataset", "CsvDataset", "decode_csv"],
            "tfrecord": ["parse_per_record", "parse_batched", "parse_in_parallel"]}
CASES = ["csv", "tfrecord", "parquet", "csv_dataloader", "tfrecord_dataloader", "memory"]


def write_file(python, script, *arguments):
    """Runs a script that writes a file, and returns the JSON object that it prints."""
    done = subprocess.run([python, str(ANCHORS / script), *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def write_file_of(format, path, blocks):
    if format == "csv":
        return write_file(sys.executable, "data_files.py", path, blocks)
    if format == "tfrecord":
        return write_file(python_with("tensorflow-cpu"), "tf_data.py", "write", path, blocks)
    return write_file(python_with("pyarrow", "numpy"), "pyarrow_parquet.py", "write", path, 10 * blocks)


def bare_read_speed(path):
    """Returns the MB/s with which the disk gives the file, past the page cache."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 4 * MIB) as memory:
            start, size = time.perf_counter(), 0
            while count := os.preadv(file, [memory], size):
                size += count
            return size / 1e6 / (time.perf_counter() - start)
    finally:
        os.close(file)


class Readers:
    """The files, and the processes that read them, which are started at their first use."""

    def __init__(self, stack, folder, blocks, formats):
        self.stack, self.folder, self.processes = stack, folder, {}
        self.paths = {format: folder / f"data.{format}" for format in formats}
        self.facts = {format: write_file_of(format, path, blocks) for format, path in self.paths.items()}
        self.megabytes = {format: path.stat().st_size / 1e6 for format, path in self.paths.items()}
        os.sync()
        self.bare = {format: bare_read_speed(path) for format, path in self.paths.items()}
        self.blocks = blocks

    def process(self, name, *command):
        if name not in self.processes:
            self.processes[name] = CommandProcess(*command)
            self.stack.callback(self.processes[name].end)
            self.processes[name].wait("ready")
        return self.processes[name]

    def records(self, format):
        return self.facts[format]["records"] * (1 if format == "parquet" else self.blocks)

    def speed(self, format, process, command):
        """Returns the MB/s of the file with which a process reads it."""
        report = process.measure(command)[1]
        if report["records"] != self.records(format):
            sys.exit(f"bench/compare: {' '.join(process.command)} read {report['records']} records of {self.records(format)}")
        return self.megabytes[format] / report["seconds"]

    def ours(self, format):
        return self.speed(format, self.process("ours", program("data_bench")), f"{format} {self.paths[format]}")

    def tensorflow(self, format, name):
        paths = [str(self.paths.get(name, "")) for name in PROGRAMS]
        return self.speed(format, self.process("tf", python_with("tensorflow-cpu"), str(ANCHORS / "tf_data.py"), "read", *paths),
                          name)

    def dataloader(self, format):
        facts = self.facts[format]
        middle = facts["head"] + facts["block"] * (self.blocks // 2)
        [protobuf] = pathlib.Path(python_with("protobuf")).parent.parent.glob("lib/python*/site-packages")
        process = self.process("torch", python_with_torch(), str(ANCHORS / "dataloader.py"), str(protobuf))
        return self.speed(format, process, f"{format} {self.paths[format]} {middle}")

    def pyarrow(self, format):
        return self.speed(format, self.process("pyarrow", python_with("pyarrow", "numpy"), str(ANCHORS / "pyarrow_parquet.py"),
                                               "read", str(self.paths[format])), "read")


def measure_reading(case, readers, rounds):
    format = case.removesuffix("_dataloader")
    also = {"bare_read_mbs": readers.bare[format]}
    if case in PROGRAMS:
        speeds = {name: readers.tensorflow(format, name) for name in PROGRAMS[case]}
        best = max(speeds, key=speeds.get)
        also.update(speeds)
        anchor_name, anchor = f"tf.data, {best}", lambda: readers.tensorflow(format, best)
    elif case == "parquet":
        anchor_name, anchor = "pyarrow, iter_batches into numpy", lambda: readers.pyarrow(format)
        anchor()
    else:
        anchor_name, anchor = "DataLoader, 2 workers", lambda: readers.dataloader(format)
    readers.ours(format)
    for round in range(rounds):
        if round % 2 == 0:
            ours, theirs = readers.ours(format), anchor()
        else:
            theirs, ours = anchor(), readers.ours(format)
        yield {"case": case, "ours": ours, "anchor": theirs, "unit": "MB/s", "threads": 2, "anchor_name": anchor_name,
               "also": {**also, "share_of_disk": ours / also["bare_read_mbs"]}}


def measure_memory(folder, blocks):
    """Compares the most memory that reading a large file needs with the limit; less is better."""
    path = folder / "large.csv"
    free = shutil.disk_usage(folder).free
    if free < 2 * blocks * 10**7:
        sys.exit(f"bench/compare: the case memory needs {2 * blocks / 100} GB of free disk, and there are {free / 1e9:.1f}")
    try:
        facts = write_file_of("csv", path, blocks)
        reader = CommandProcess(program("data_bench"))
        try:
            reader.wait("ready")
            report = reader.measure(f"csv {path}")[1]
            status = pathlib.Path(f"/proc/{reader.process.pid}/status").read_text()
        finally:
            reader.end()
    finally:
        path.unlink(missing_ok=True)
    if report["records"] != facts["records"] * blocks:
        sys.exit(f"bench/compare: data_bench read {report['records']} records of {facts['records'] * blocks}")
    [peak] = [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    yield {"case": "memory", "ours": peak, "anchor": MEMORY_LIMIT, "unit": "MiB", "threads": 2, "inverse": True,
           "anchor_name": "the limit", "also": {"file_gb": blocks / 100, "mb_per_second": blocks * 10 / report["seconds"]}}


def data(cases, quick, rounds):
    """csv tfrecord against the best of three tf.data programs, whose speeds are printed too; csv_dataloader
               tfrecord_dataloader against torch's DataLoader with Python's csv module and protobuf; parquet against
               pyarrow; memory (not with --quick): peak of the process that reads a CSV file of 10 GB, against a limit of
               512 MiB. Files of 200 MB, or 20 MB with --quick, in the page cache; two threads on each side"""
    for case in cases:
        if case not in CASES:
            sys.exit(f"bench/compare: there is no case '{case}'")
    cases = [case for case in CASES if case in cases or (not cases and not (quick and case == "memory"))]
    formats = list(dict.fromkeys(case.removesuffix("_dataloader") for case in cases if case != "memory"))
    entries = []
    with contextlib.ExitStack() as stack:
        build = ROOT / "build"  # On a disk, unlike the folder for temporary files of some machines.
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=build, prefix="bench-data-")))
        readers = Readers(stack, folder, 2 if quick else 20, formats)
        for case in cases:
            if case == "memory":
                entries += measure_memory(folder, MEMORY_BLOCKS // 10 if quick else MEMORY_BLOCKS)
            else:
                slow = case.endswith("_dataloader")
                entries += measure_reading(case, readers, rounds or (1 if quick and slow else 3 if quick or slow else 7))
    return "tf.data", entries
