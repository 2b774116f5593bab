"""Trains with Keras's fit on TensorFlow's parameter servers for bench/compare: 3 workers and 2 servers as processes.

Executes each line of its input, "fit STEPS EPOCHS" or "fit_callbacks STEPS EPOCHS FOLDER", and answers with the line "done"
and a JSON object: the steps, the seconds that fit() took, and the loss of the last epoch. fit_callbacks logs to a CSV file
and to TensorBoard in the folder. Needs tensorflow and tf-keras, which bench/compare installs: Keras 3 does not train on
parameter servers.
"""
import json
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"

from tf_ps import run_cluster

WORKERS, SERVERS = 3, 2
EXAMPLES, INPUTS, OUTPUTS, BATCH, STEPS_PER_EXECUTION = 1024, 10, 10, 32, 10


def serve(job, index, cluster):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    # TensorFlow's guide asks for this where a machine has fewer cores than tasks: closures would wait for each other.
    config.inter_op_parallelism_threads = max(os.cpu_count(), WORKERS + 1)
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc", config=config).join()


def dataset(context):
    """Returns the batches of a worker."""
    import tensorflow as tf

    x = tf.random.stateless_normal((EXAMPLES, INPUTS), seed=(1, 0))
    y = tf.matmul(x, tf.random.stateless_normal((INPUTS, OUTPUTS), seed=(2, 0)))
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(EXAMPLES).repeat().batch(BATCH, drop_remainder=True)
    return data.prefetch(2)


def execute_commands(cluster):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(OUTPUTS, input_shape=(INPUTS,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=STEPS_PER_EXECUTION)
    data = tf.keras.utils.experimental.DatasetCreator(dataset)

    print("ready", flush=True)
    for line in sys.stdin:
        name, steps, epochs, *folder = line.split()
        callbacks = []
        if name == "fit_callbacks":
            callbacks = [tf.keras.callbacks.CSVLogger(f"{folder[0]}/log.csv"), tf.keras.callbacks.TensorBoard(folder[0])]
        start = time.perf_counter()
        history = model.fit(data, steps_per_epoch=int(steps), epochs=int(epochs), callbacks=callbacks, verbose=0)
        report = {"steps": int(steps) * int(epochs), "seconds": time.perf_counter() - start, "loss": history.history["loss"][-1]}
        print("done", json.dumps(report), flush=True)


if __name__ == "__main__":
    run_cluster(WORKERS, SERVERS, serve, execute_commands)
