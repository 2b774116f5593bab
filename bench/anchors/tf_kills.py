"""Measures how many closures TensorFlow's coordinator loses or repeats while workers are killed.

  bench/anchors/tf_kills.py [--closures 20000] [--kills 20] [--runs 3] [--seed 1]

Each closure adds 1 to a variable on a parameter server. 2 workers and 2 parameter servers run as processes. A random
worker is killed (SIGKILL) and restarted; the next kill follows once both workers run closures again. Closures are
scheduled until the given numbers of closures and kills are reached, then joined. Prints one JSON object per run: the
number of scheduled closures, the variable's value, their difference, and the error if one was raised. Needs
tensorflow-cpu: run it with bench/.venv/tensorflow-cpu/bin/python, which `bench/compare coordinator` creates.
"""
import argparse
import json
import multiprocessing as mp
import os
import pathlib
import random
import socket
import sys
import threading
import time

import tf_ps

TIMEOUT = 300  # Seconds without a counted closure after which the run is given up.
AHEAD = 2000  # Queued closures: enough for both workers while the next are scheduled.


class Task:
    """A task of the cluster that runs as a process and can be killed and restarted."""

    def __init__(self, cluster, job, index):
        self.address = cluster[job][index]
        self.arguments = (job, index, cluster)
        self.start()

    def start(self):
        self.process = mp.get_context("spawn").Process(target=tf_ps.serve, args=self.arguments, daemon=True)
        self.process.start()

    def kill(self):
        self.process.kill()
        self.process.join()

    def listens(self):
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def ticks(self):
        """Returns the processor time of the process in clock ticks."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        return sum(map(int, stat.rsplit(")", 1)[1].split()[11:13]))

    def works(self):
        """Returns true if the worker runs closures. A restarted worker is idle until the coordinator finds it."""
        if not self.listens():
            return False
        before = self.ticks()
        time.sleep(1)
        return self.ticks() - before >= 5


class Killer(threading.Thread):
    """Kills and restarts workers, one at a time."""

    def __init__(self, workers, kills, dice):
        super().__init__(daemon=True)
        self.workers, self.wanted, self.kills, self.dice = workers, kills, 0, dice

    def run(self):
        while self.kills < self.wanted:
            if not all(worker.works() for worker in self.workers):
                time.sleep(0.1)
                continue
            time.sleep(self.dice.uniform(0, 1))
            worker = self.dice.choice(self.workers)
            worker.kill()
            self.kills += 1
            time.sleep(self.dice.uniform(0, 0.3))
            worker.start()

    def end(self):
        self.wanted = self.kills
        self.join()


def count(cluster, workers, closures, kills, dice):
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def add():
        variable.assign_add(1)
        return 0

    value, moved, error = 0, time.monotonic(), None
    scheduled, start = 0, time.monotonic()
    killer = Killer(workers, kills, dice)
    killer.start()

    def watch():
        nonlocal value, moved
        now = int(variable.numpy())
        if now != value:
            value, moved = now, time.monotonic()
        if time.monotonic() - moved > TIMEOUT:
            raise TimeoutError(f"no closure was counted for {TIMEOUT} s")
        time.sleep(0.05)

    try:
        while scheduled < closures or killer.is_alive():
            watch()
            while scheduled - value < AHEAD:
                coordinator.schedule(add)
                scheduled += 1
        while not coordinator.done():
            watch()
        coordinator.join()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    killer.end()
    value = int(variable.numpy())
    return {"scheduled": scheduled, "kills": killer.kills, "value": value, "difference": value - scheduled,
            "error": error, "seconds": round(time.monotonic() - start), "version": tf.__version__}


def run(arguments, seed):
    ports = [tf_ps.reserve() for _ in range(tf_ps.WORKERS + tf_ps.SERVERS)]
    addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    cluster = {"worker": addresses[:tf_ps.WORKERS], "ps": addresses[tf_ps.WORKERS:]}
    tasks = [Task(cluster, job, index) for job in cluster for index in range(len(cluster[job]))]
    try:
        result = count(cluster, tasks[:tf_ps.WORKERS], arguments.closures, arguments.kills, random.Random(seed))
        print(json.dumps({"seed": seed, **result}), flush=True)
    finally:  # TensorFlow's servers never end by themselves.
        for task in tasks:
            task.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--closures", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.runs == 1:
        run(arguments, arguments.seed)
        sys.stdout.flush()
        os._exit(0)
    # Each run has its own process, because TensorFlow connects a process to one cluster only.
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, __file__, "--runs", "1", "--seed", str(seed),
                  "--closures", str(arguments.closures), "--kills", str(arguments.kills))


if __name__ == "__main__":
    main()
