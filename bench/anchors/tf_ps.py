"""Runs TensorFlow's parameter servers and coordinator for bench/compare: 2 workers and 2 servers as processes.

Executes each line of its input and answers with the line "done". "pull N", "push N" and "many_small N" run N closures
one after the other. "closures N" and "update N" schedule N closures at once: empty ones, or closures that add to a
variable. Needs tensorflow-cpu, which bench/compare installs.
"""
import multiprocessing as mp
import os
import socket
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

WORKERS, SERVERS = 2, 2
FLOATS = 16 << 20  # 64 MiB, with one shard per server.
SMALL, SMALL_FLOATS = 10_000, 64


def reserve():
    """Binds a port without listening on it: TensorFlow's servers can listen there, and no other process gets it."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port.bind(("127.0.0.1", 0))
    return port


def serve(job, index, cluster):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc").join()


def execute_commands(cluster, with_small):
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(SERVERS)
    sharded = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(sharded)
    with sharded.scope():
        dense = tf.Variable(tf.zeros([FLOATS]))

    @tf.function
    def pull():
        return tf.add_n([tf.reduce_sum(tf.identity(tf.convert_to_tensor(s))[:1]) for s in dense.variables])

    @tf.function
    def push():
        for shard in dense.variables:
            shard.assign_add(tf.fill(shard.shape, 0.1))
        return 0

    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        count = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def closures():
        return 0

    @tf.function
    def update():
        count.assign_add(1)
        return 0

    at_once = {"closures": closures, "update": update}
    functions = {"pull": pull, "push": push}
    if with_small:
        small = []
        for i in range(SMALL):  # Placed round-robin, as without a partitioner.
            with tf.device(f"/job:ps/replica:0/task:{i % SERVERS}/device:CPU:0"):
                small.append(tf.Variable(tf.zeros([SMALL_FLOATS])))

        @tf.function
        def many_small():
            values = [v.read_value() for v in small]
            for variable, value in zip(small, values):
                variable.assign_add(value * 0.001)
            return 0

        functions["many_small"] = many_small

    print("ready", flush=True)
    for line in sys.stdin:
        name, times = line.split()
        for _ in range(int(times)):
            if name in at_once:
                coordinator.schedule(at_once[name])
            else:
                coordinator.schedule(functions[name])
                coordinator.join()
        coordinator.join()
        print("done", flush=True)


def run_cluster(workers, servers, serve, execute):
    """Runs `execute(cluster)` beside a cluster whose tasks run `serve(job, index, cluster)`, and ends the process."""
    ports = [reserve() for _ in range(workers + servers)]
    addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
    context = mp.get_context("spawn")
    tasks = [context.Process(target=serve, args=(job, index, cluster), daemon=True)
             for job, members in cluster.items() for index in range(len(members))]
    for task in tasks:
        task.start()
    try:
        execute(cluster)
    finally:  # TensorFlow's servers never end by themselves.
        for task in tasks:
            task.kill()
            task.join()
        os._exit(0)


if __name__ == "__main__":
    run_cluster(WORKERS, SERVERS, serve, lambda cluster: execute_commands(cluster, "--many-small" in sys.argv))
