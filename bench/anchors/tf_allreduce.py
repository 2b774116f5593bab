"""One worker that reduces tensors with TensorFlow's RING, for bench/compare.

  tf_allreduce.py ADDRESS,ADDRESS,… RANK

Executes each line of its input, "BYTES CALLS", which all workers get, and answers with the line "done" and the median and
the mean of the seconds of a call. Needs tensorflow-cpu, which bench/compare installs.
"""
import json
import os
import statistics
import sys
import time

addresses, rank = sys.argv[1].split(","), int(sys.argv[2])
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # Without a message; nothing here uses oneDNN.
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)


def make_step(strategy, size):
    tensor = tf.ones([size // 4])

    @tf.function
    def step():
        def replica():
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)[:1]
        return strategy.run(replica)
    return step


def seconds_of(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main():
    options = tf.distribute.experimental
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options.CommunicationOptions(
        implementation=options.CommunicationImplementation.RING))
    print("ready", flush=True)
    steps = {}
    for line in sys.stdin:
        size, calls = map(int, line.split())
        if size not in steps:
            steps[size] = make_step(strategy, size)
        assert float(strategy.experimental_local_results(steps[size]())[0][0]) == len(addresses)
        seconds = [seconds_of(steps[size]) for _ in range(calls)]
        print("done", json.dumps({"median": statistics.median(seconds), "mean": statistics.mean(seconds)}), flush=True)
    os._exit(0)  # The threads of the other workers would hold it.


if __name__ == "__main__":
    main()
