"""Reads files with tf.data for bench/compare, with two threads, and writes the TFRecord file.

  tf_data.py write FILE BLOCKS                     writes a TFRecord file as data_files.py writes CSV
  tf_data.py read CSV_FILE TFRECORD_FILE           reads; an empty name for a file that is not needed

"read" executes each line of its input, which is the name of one of the programs below, and answers with the line "done" and
the records and seconds. A program gives batches of 1,024 records to a function in TensorFlow that counts them. Needs
tensorflow-cpu, which bench/compare installs.
"""
import json
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # Without a message; nothing here uses oneDNN.
import tensorflow as tf

from data_files import FLOATS, INTS, NAMES, TEXTS, block_of, write_blocks

THREADS, BATCH = 2, 1024
tf.config.threading.set_intra_op_parallelism_threads(THREADS)
tf.config.threading.set_inter_op_parallelism_threads(THREADS)
DEFAULTS = [tf.constant([0], tf.int64)] * len(INTS) + [tf.constant([0.0])] * len(FLOATS) + [tf.constant([""])] * len(TEXTS)
FEATURES = {**{name: tf.io.FixedLenFeature([], tf.int64) for name in INTS},
            **{name: tf.io.FixedLenFeature([], tf.float32) for name in FLOATS},
            **{name: tf.io.FixedLenFeature([], tf.string) for name in TEXTS}}


def make_csv_dataset(file):
    return tf.data.experimental.make_csv_dataset(file, BATCH, column_names=NAMES, column_defaults=DEFAULTS, num_epochs=1,
                                                 shuffle=False, num_parallel_reads=THREADS)


def csv_dataset(file):
    return tf.data.experimental.CsvDataset(file, DEFAULTS, header=True).batch(BATCH, num_parallel_calls=THREADS).prefetch(THREADS)


def decode_csv(file):
    lines = tf.data.TextLineDataset(file).skip(1).batch(BATCH)
    return lines.map(lambda batch: tf.io.decode_csv(batch, DEFAULTS), num_parallel_calls=THREADS).prefetch(THREADS)


def parse_per_record(file):
    parsed = tf.data.TFRecordDataset(file).map(lambda record: tf.io.parse_single_example(record, FEATURES), THREADS)
    return parsed.batch(BATCH).prefetch(THREADS)


def parse_batched(file):
    batches = tf.data.TFRecordDataset(file).batch(BATCH)
    return batches.map(lambda batch: tf.io.parse_example(batch, FEATURES)).prefetch(THREADS)


def parse_batched_in_parallel(file):
    batches = tf.data.TFRecordDataset(file).batch(BATCH)
    return batches.map(lambda batch: tf.io.parse_example(batch, FEATURES), THREADS).prefetch(THREADS)


CSV_PROGRAMS = {"make_csv_dataset": make_csv_dataset, "CsvDataset": csv_dataset, "decode_csv": decode_csv}
TFRECORD_PROGRAMS = {"parse_per_record": parse_per_record, "parse_batched": parse_batched,
                     "parse_in_parallel": parse_batched_in_parallel}


def count_records(dataset):
    """Returns a function that reads the dataset inside of TensorFlow. It is traced here, so that only reading is measured."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    dataset = dataset.with_options(options)

    @tf.function
    def count():
        return dataset.reduce(tf.constant(0, tf.int64), lambda before, batch: before + tf.shape(
            tf.nest.flatten(batch)[0], out_type=tf.int64)[0])

    count.get_concrete_function()
    return count


def example(ints, floats, texts):
    feature = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value])) for name, value in zip(INTS, ints)}
    feature.update({name: tf.train.Feature(float_list=tf.train.FloatList(value=[value])) for name, value in zip(FLOATS, floats)})
    feature.update({name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
                    for name, value in zip(TEXTS, texts)})
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write(path, blocks):
    """Writes a block with TensorFlow, and repeats its bytes, as TFRecord allows."""
    records = block_of(example)
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    with open(path, "rb") as file:
        block = file.read()
    write_blocks(path, blocks, b"", block, len(records))


def read(csv_file, tfrecord_file):
    programs = {}
    if csv_file:
        programs.update({name: count_records(make(csv_file)) for name, make in CSV_PROGRAMS.items()})
    if tfrecord_file:
        programs.update({name: count_records(make(tfrecord_file)) for name, make in TFRECORD_PROGRAMS.items()})
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        count = int(programs[line.strip()]())
        print("done", json.dumps({"records": count, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]))
    else:
        read(*sys.argv[2:])
