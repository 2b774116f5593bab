"""The programs that bench/compare starts: servers, and processes that execute commands."""
import json
import pathlib
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"


def program(name):
    path = BIN / name
    if not path.exists():
        sys.exit(f"bench/compare: {path.relative_to(ROOT)} is missing; run: cmake --preset release && "
                 "cmake --build --preset release")
    return str(path)


def end_process(process):
    """Closes the input of a process, at which it ends, and kills it if it does not."""
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Server:
    """A process that prints its address first and ends when its standard input is closed."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            sys.exit(f"bench/compare: {' '.join(command)} did not start")

    def __enter__(self):
        return self.address

    def __exit__(self, *_):
        end_process(self.process)


class CommandProcess:
    """A process that executes each line of its input as a command and answers with a line."""

    def __init__(self, *command):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self, line):
        """Waits for an answer that begins with `line`, and returns the rest of it."""
        answer = self.process.stdout.readline().strip()
        if not answer.startswith(line):
            sys.exit(f"bench/compare: {' '.join(self.command)} failed")
        return answer[len(line):]

    def seconds(self, what, count):
        return self.measure(f"{what} {count}")[0]

    def measure(self, command):
        """Executes a command, and returns the seconds that it took and the JSON object that its answer has, if any."""
        start = time.perf_counter()
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        report = self.wait("done")
        return time.perf_counter() - start, json.loads(report) if report.strip() else {}

    def end(self):
        end_process(self.process)


def python_with(package, *others):
    """Returns a Python that has the packages, in a virtual environment of their own, which is created at the first use."""
    folder = ROOT / "bench" / ".venv" / package
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"bench/compare: installing {package} into {folder.relative_to(ROOT)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", package, *others], check=True)
        (folder / "ready").touch()
    return str(python)


def reserve_port():
    """Binds a port without listening: a server that reuses addresses can listen there, and no other process gets it."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


def rounds_of(command, timeout):
    """Runs a program that prints one JSON object per round, and returns the objects."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit(f"bench/compare: {' '.join(command)} ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]
