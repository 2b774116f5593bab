#!/usr/bin/env python3
"""Runs the commands of docs/tutorial.md and compares their output with what the page shows.

usage: tutorial_test.py TUTORIAL BIN EXAMPLES

A block after `<!-- run -->` runs in a shell of this machine; one after `<!-- run on HOST -->` runs in a shell of that
host. Each host is a network namespace with an address, a folder and a shell of its own, so that background jobs and
files remain there between blocks. The block that follows without a language is the true output of one run. The output
of this run must be equal to it, except for what differs from run to run (DIFFERS). In both, the loss of the last epoch
must be below that of the first.

Exit: 0 if all agree, 1 if not, 77 if namespaces are not permitted here.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS_PER_BLOCK = 120
SKIPPED = 77
INSIDE = "TRIREME_TUTORIAL_INSIDE"  # Set once this program runs in namespaces of its own.


class Block:
    def __init__(self, line, host, commands):
        self.line = line
        self.host = host
        self.commands = commands
        self.expected = None


def blocks_of(page):
    """Returns the blocks that the page marks, each with its expected output if it has one."""
    blocks, marked, fence, content = [], None, None, []
    for number, line in enumerate(page.split("\n"), 1):
        mark = re.fullmatch(r"<!-- run(?: on (\S+))? -->", line)
        if not mark and re.match(r"<!--\s*run", line):
            raise ValueError(f"line {number}: '{line}' is neither `<!-- run -->` nor `<!-- run on HOST -->`")
        if fence is None and mark:
            marked = (number, mark.group(1) or "here")
        elif fence is None and line.startswith("```"):
            fence, content = line[3:], []
        elif fence is not None and line == "```":
            if fence == "sh":
                blocks.append(Block(*marked, "\n".join(content)) if marked else None)
            elif fence == "" and blocks and blocks[-1] and blocks[-1].expected is None:
                blocks[-1].expected = "".join(line + "\n" for line in content)
            marked, fence = None, None
        elif fence is not None:
            content.append(line)
    return [block for block in blocks if block]


# Patterns of what differs from run to run, and the words that stand for it when outputs are compared.
DIFFERS = [
    (re.compile(r"\b[0-9a-f]{16}\b"), "INCARNATION"),
    (re.compile(r"\b127\.0\.0\.1:[0-9]+"), "ADDRESS"),
    (re.compile(r"\b(?:[0-9]+[hm] )*[0-9]+(?:\.[0-9]+)?(?:us|ms|s)\b"), "TIME"),
    (re.compile(r" +"), " "),  # Columns are as wide as what is in them.
]
FIGURE = re.compile(r"\b[0-9]+\.[0-9]+(?:e-[0-9]+)?\b")  # A number in a line about a loss or an accuracy.
LOSS = re.compile(r"(?:^epoch [0-9]+: loss |- loss: )([0-9.e-]+)", re.MULTILINE)


def without_differences(output):
    lines = []
    for line in output.splitlines():
        for pattern, name in DIFFERS:
            line = pattern.sub(name, line)
        lines.append(FIGURE.sub("FIGURE", line) if re.search("loss|accuracy", line) else line)
    return lines


def learns(output):
    """Returns true if the last loss is below the first one, or if there are fewer than two."""
    losses = [float(loss) for loss in LOSS.findall(output)]
    return len(losses) < 2 or losses[-1] < losses[0]


def agrees(printed, shown):
    return without_differences(printed) == without_differences(shown) and learns(printed) and learns(shown)


class Shell:
    """A shell that keeps running between blocks, in its own folder and, for a host, its own network namespace."""

    def __init__(self, folder, path, is_host):
        folder.mkdir()
        self.log = folder / "stderr.log"
        self.process = subprocess.Popen(
            (["unshare", "--net"] if is_host else []) + ["bash", "--noprofile", "--norc"],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w"),
            env={**os.environ, "PATH": path}, start_new_session=True)
        # Hosts share a file system here, so a copy to another host is a copy to its folder.
        self.run('scp() { local to=${@: -1}; cp -r "${@:2:$#-2}" "../${to%:}/"; }')

    def run(self, commands):
        """Runs commands and returns what they print and the exit code of the last; raises TimeoutError if they do not end."""
        end = f"---end of block {time.monotonic_ns()}---"
        self.process.stdin.write(f"{commands}\nprintf '%s\\n%s\\n' $? '{end}'\n".encode())
        self.process.stdin.flush()
        text, limit = b"", time.monotonic() + SECONDS_PER_BLOCK
        while not text.endswith(f"{end}\n".encode()):
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no end after {SECONDS_PER_BLOCK} seconds; it printed:\n{text.decode()}")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                raise TimeoutError(f"the shell has ended; it printed:\n{text.decode()}")
            text += piece
        printed, _, code = text.decode()[:-len(end) - 2].rpartition("\n")
        return printed + "\n" if printed else "", int(code)

    def end(self):
        """Kills the shell and everything that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def connect(hosts, folder):
    """Joins the namespaces of the two hosts by a pair of devices, and gives the hosts their names."""
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
        f"10.77.0.{number} {name}\n" for number, name in enumerate(hosts, 1)))
    subprocess.run(["mount", "--bind", folder / "hosts", "/etc/hosts"], check=True)
    subprocess.run(["ip", "link", "add", "host1", "type", "veth", "peer", "name", "host2"], check=True)
    for number, shell in enumerate(hosts.values(), 1):
        subprocess.run(["ip", "link", "set", f"host{number}", "netns", str(shell.process.pid)], check=True)
        _, code = shell.run(f"ip address add 10.77.0.{number}/24 dev host{number} && ip link set host{number} up && "
                            "ip link set lo up")
        if code != 0:
            raise RuntimeError(f"cannot set up the network of a host: {shell.log.read_text()}")


def run_page(page, path):
    blocks = blocks_of(page)
    names = sorted({block.host for block in blocks} - {"here"})
    if len(blocks) < 10 or len(names) != 2:
        print(f"the page has {len(blocks)} marked blocks on the hosts {names}; expected 10 or more on two")
        return 1
    folder = Path(tempfile.mkdtemp())
    shells = {name: Shell(folder / name, path, name != "here") for name in ["here", *names]}
    try:
        connect({name: shells[name] for name in names}, folder)
        shells["here"].run("ip link set lo up")
        for block in blocks:
            printed, code = shells[block.host].run(block.commands)
            if code != 0 or (block.expected is not None and not agrees(printed, block.expected)):
                print(f"line {block.line}, on {block.host}:\n{block.commands}\nexit code {code}, printed\n{printed}\n"
                      f"the page shows\n{block.expected or ''}")
                for name, shell in shells.items():
                    print(f"\nstandard error on {name}:\n{shell.log.read_text()[-4000:]}")
                return 1
            print(f"line {block.line}, on {block.host}: as shown")
    finally:
        for shell in shells.values():
            shell.end()
        shutil.rmtree(folder)
    print(f"{len(blocks)} blocks, all as shown")
    return 0


def main():
    if len(sys.argv) != 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        enter = ["unshare", "--net", "--mount", "--propagation", "private", "--fork", "--kill-child"]
        if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
            print("skipped: this test needs network and mount namespaces (root or CAP_SYS_ADMIN)")
            return SKIPPED
        return subprocess.run([*enter, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}).returncode
    tutorial, binaries, examples = sys.argv[1:]
    path = f"{Path(binaries).resolve()}:{Path(examples).resolve()}:{os.environ['PATH']}"
    return run_page(Path(tutorial).read_text(), path)


if __name__ == "__main__":
    sys.exit(main())
