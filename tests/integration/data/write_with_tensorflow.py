#!/usr/bin/env python3
"""Writes files with TensorFlow, and the elements that tf.data reads from them, for tf_data_test.py.

usage: write_with_tensorflow.py FOLDER [RECORDS]

Runs with a Python that has tensorflow-cpu, which bench/compare installs. RECORDS, by default 6, is the length of the first
file of each format; the others are shorter and longer. The same arguments give the same files. FOLDER/expected.json has the
elements of each pipeline. pipelines_program.cc builds the same pipelines, by the same names.
"""
import json
import os
import random
import struct
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # Without a message; nothing here uses oneDNN.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import tensorflow as tf

from expected import TEXT_BYTES, write_expected

FOLDER = Path(sys.argv[1])
RECORDS = int(sys.argv[2]) if len(sys.argv) > 2 else 6
LENGTHS = {"a": RECORDS, "b": RECORDS // 2, "c": 2 * RECORDS - 1, "empty": 0}
FILLER = 600 if RECORDS > 100 else 4  # Most bytes of a field that no pipeline reads; makes files longer than a reader's buffer.
WORDS = ["", "blue", "red, dark", 'a "quoted" word', "grün", "two\nlines", "x" * TEXT_BYTES, "0", "-"]
NUMBERS = ["0.1", "-0.0", "1e-3", "16777217", "3.4028235e38", "1e-40", "123456.789", "-7", "2.5E+2", ".5", "1."]

choice = random.Random(5)


def path(name):
    return str(FOLDER / name)


def paths(ending, *names):
    return [path(f"{name}.{ending}") for name in names]


# Files.

def write_text():
    count = 0
    for name, length in LENGTHS.items():
        lines = []
        for _ in range(length):
            lines.append(choice.choice(["", f"line {count}", f"  line {count} spaced  "]).encode())
            count += 1
        end = b"\r\n" if name == "b" else b"\n"
        # The last line of the third file has no end.
        (FOLDER / f"{name}.txt").write_bytes(end.join(lines) + (end if lines and name != "c" else b""))


def quoted(text):
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n;') else text


def write_csv():
    count = 0
    for name, length in LENGTHS.items():
        lines = ["id,score,word,flag,filler,precise"]
        for _ in range(length):
            score = choice.choice(NUMBERS + [""])
            flag = choice.choice(["", "3", "-2147483648"])
            filler = "f" * choice.randrange(FILLER)
            lines.append(f"{count},{score},{quoted(choice.choice(WORDS))},{flag},{filler},{choice.choice(NUMBERS)}")
            count += 1
        end = "\r\n" if name == "b" else "\n"
        (FOLDER / f"{name}.csv").write_bytes((end.join(lines) + (end if name != "c" else "")).encode())
    plain = [f"{i};{quoted(choice.choice(WORDS))};{choice.choice(NUMBERS)}\n" for i in range(RECORDS)]
    (FOLDER / "semicolons.csv").write_bytes("".join(plain).encode())
    numbers = ["x1,x2,x3,label\n"] + [",".join(choice.choices(NUMBERS, k=4)) + "\n" for _ in range(RECORDS)]
    (FOLDER / "numbers.csv").write_bytes("".join(numbers).encode())


def feature(values):
    if isinstance(values[0] if values else 0, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0] if values else 0, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_tf_records():
    count = 0
    for name, length in LENGTHS.items():
        with tf.io.TFRecordWriter(path(f"{name}.tfrecord")) as writer:
            for _ in range(length):
                features = {"id": [count], "score": [choice.uniform(-9, 9)], "word": [choice.choice(WORDS).encode()],
                            "weights": [choice.gauss(0, 1e3) for _ in range(3)],
                            "tags": [choice.randrange(-2**63, 2**63) for _ in range(choice.randrange(4))],
                            "filler": [b"f" * choice.randrange(FILLER)]}
                if choice.random() < 0.6:  # The others lack these features.
                    features.update(maybe=[choice.randrange(-5, 5)], rate=[choice.random()], note=[b"noted"])
                example = tf.train.Example(features=tf.train.Features(
                    feature={key: feature(values) for key, values in features.items()}))
                writer.write(example.SerializeToString(deterministic=True))
                count += 1


def tensors():
    x = np.arange(2 * RECORDS, dtype=np.float32).reshape(RECORDS, 2) / 7
    return x, np.arange(RECORDS, dtype=np.int64) * 3


def write_safetensors():
    x, y = tensors()
    head = json.dumps({"x": {"dtype": "F32", "shape": x.shape, "data_offsets": [0, x.nbytes]},
                       "y": {"dtype": "I64", "shape": y.shape, "data_offsets": [x.nbytes, x.nbytes + y.nbytes]}}).encode()
    head += b" " * (-len(head) % 8)
    (FOLDER / "numbers.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + x.tobytes() + y.tobytes())


# Sources. Elements of csv() and records() are (id, score) unless other columns are named.

def text(*names):
    return tf.data.TextLineDataset(paths("txt", *names))


CSV = {"id": (0, tf.int64), "score": (1, tf.constant([-1.5], tf.float32)), "word": (2, tf.constant([""], tf.string)),
       "flag": (3, tf.constant([7], tf.int32)), "precise": (5, tf.float64)}


def csv_files(files, *columns):
    ordered = sorted(columns, key=lambda column: CSV[column][0])
    read = tf.data.experimental.CsvDataset(files, [CSV[column][1] for column in ordered], header=True,
                                           select_cols=[CSV[column][0] for column in ordered])
    return read.map(lambda *fields: tuple(fields[ordered.index(column)] for column in columns))


def csv(*names, columns=("id", "score")):
    return csv_files(paths("csv", *names), *columns)


FEATURES = {"id": tf.io.FixedLenFeature([], tf.int64), "score": tf.io.FixedLenFeature([], tf.float32),
            "word": tf.io.FixedLenFeature([], tf.string), "weights": tf.io.FixedLenFeature([3], tf.float32),
            "tags": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
            "maybe": tf.io.FixedLenFeature([], tf.int64, -1), "rate": tf.io.FixedLenFeature([], tf.float32, 0.5),
            "note": tf.io.FixedLenFeature([], tf.string, b"")}


def parsed(dataset, *columns):
    def parse(record):
        values = tf.io.parse_single_example(record, {column: FEATURES[column] for column in columns})
        return tuple(values[column] for column in columns)
    return dataset.map(parse)


def records(*names, columns=("id", "score")):
    return parsed(tf.data.TFRecordDataset(paths("tfrecord", *names)), *columns)


def interleaved(cycle, block_length, *names, columns=("id",)):
    files = tf.data.Dataset.from_tensor_slices(paths("tfrecord", *names))
    return parsed(files.interleave(tf.data.TFRecordDataset, cycle, block_length), *columns)


def interleaved_csv(cycle, block_length, *names):
    files = tf.data.Dataset.from_tensor_slices(paths("csv", *names))
    return files.interleave(lambda file: csv_files([file], "id", "score"), cycle, block_length)


def even(id, *_):
    return id % 2 == 0


def scaled(id, score):
    return id + 100, score * 2 + 1


def pipelines():
    data = tf.data.Dataset
    files = ("a", "empty", "b", "c")
    padded = {"padded_shapes": ([6], []), "padding_values": (tf.constant(-1, tf.int64), tf.constant(-1, tf.int64))}
    tags = records("a", "b", columns=("tags", "id"))
    return {
        # Sources
        "range_down": data.range(10, 0, -3),
        "tensors": data.from_tensor_slices(tensors()),
        "text": text("a"),
        "text_crlf": text("b"),
        "text_files": text(*files),
        "csv": csv("a", columns=("id", "score", "word", "flag", "precise")),
        "csv_crlf": csv("b", columns=("id", "word", "precise")),
        "csv_other_order": csv("c", columns=("precise", "word", "id")),
        "csv_files": csv(*files),
        "csv_without_names": tf.data.experimental.CsvDataset(
            path("semicolons.csv"), [tf.int64, tf.constant([""], tf.string), tf.float32], field_delim=";"),
        "csv_numbers": tf.data.experimental.CsvDataset(path("numbers.csv"), [tf.float32] * 4, header=True).map(
            lambda *x: (tf.stack(x[:3]), x[3])),
        "records": records("a", columns=("id", "score", "word", "weights")),
        "records_with_missing_features": records("c", columns=("id", "maybe", "rate", "note")),
        "records_files": records(*files),
        "records_pattern": parsed(data.list_files(path("*.tfrecord"), shuffle=False).flat_map(tf.data.TFRecordDataset), "id"),
        "records_of_an_empty_file": records("empty"),
        "safetensors": data.from_tensor_slices(tensors()),
        # Batches
        "batch": csv("a", "b", columns=("id", "word")).batch(4),
        "batch_drop_remainder": records("a", "b").batch(4, drop_remainder=True),
        "batch_larger_than_the_data": text("b").batch(1000000),
        "batch_of_batches": records(*files, columns=("id",)).batch(2, drop_remainder=True).batch(3),
        "batch_of_vectors": records("a", columns=("weights", "word")).batch(4),
        "padded_batch": tags.padded_batch(4),
        "padded_batch_to_sizes": tags.padded_batch(4, **padded),
        "padded_batch_drop_remainder": tags.padded_batch(4, drop_remainder=True),
        # Parts of the data
        "shard": records(*files).shard(3, 1),
        "shard_of_batches": csv(*files).batch(2).shard(2, 1),
        "skip_take": records(*files).skip(RECORDS // 2).take(RECORDS),
        "skip_past_the_end": csv("a").skip(1000000),
        "take_repeat_skip": text("a").take(3).repeat(4).skip(5),
        "repeat_take": csv("a", "b").repeat().take(2 * RECORDS),
        "repeat_batch": records("b").repeat(3).batch(4),
        "batch_repeat": records("b").batch(2).repeat(2),
        "filter": records(*files).filter(even),
        "filter_batch": csv(*files).filter(even).batch(4),
        "filter_shard_repeat": records("a", "b").filter(even).shard(2, 0).repeat(2),
        # Several datasets
        "zip": data.zip((records("a", "c"), data.range(5, 5 + RECORDS))).map(lambda r, n: (*r, n)),
        "zip_of_formats": data.zip((text("a", "c"), csv("a", "c"))).map(lambda line, fields: (line, *fields)).batch(4),
        "concatenate": records("c").concatenate(records("b")).concatenate(csv("a")),
        "concatenate_batch_repeat": csv("b").concatenate(csv("a")).batch(4).repeat(2),
        # Interleaved files
        "interleave_2_1": interleaved(2, 1, *files),
        "interleave_2_2": interleaved(2, 2, *files),
        "interleave_3_1": interleaved(3, 1, "empty", "b", "c", "a"),
        "interleave_3_2": interleaved(3, 2, "b", "a", "empty", "c", "a"),
        "interleave_more_than_files": interleaved(9, 3, "a", "b", "c"),
        "interleave_csv_batch": interleaved_csv(3, 1, "empty", "a", "b", "c").batch(4),
        "interleave_skip_repeat_shard": interleaved(2, 2, *files).skip(3).repeat(2).shard(2, 1),
        # Functions
        "map": records("a").map(scaled),
        "map_in_parallel": records(*files).map(scaled, num_parallel_calls=4),
        "map_batches": csv("a", "b").batch(3, drop_remainder=True).map(scaled),
        "map_filter_batch": csv(*files).map(scaled).filter(even).batch(3),
        # Buffers
        "cache_repeat": csv("a", "b").cache().repeat(3),
        "filter_cache_repeat_batch": records(*files).filter(even).cache().repeat(2).batch(4),
        "map_batch_prefetch": records(*files).map(scaled).batch(4).prefetch(2),
        "prefetch_take": text("c").prefetch(4).take(RECORDS),
    }


def shuffles():
    """Yields name, dataset without the shuffle, buffer, repetitions. The first tensor of an element identifies it."""
    files = ("a", "empty", "b", "c")
    yield "shuffle", records(*files), 3, 1
    yield "shuffle_of_all", csv(*files), 1000000, 1
    yield "shuffle_repeat", records("a", "b"), 4, 3
    yield "interleave_shuffle", interleaved(2, 1, *files), 5, 1


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for write in (write_text, write_csv, write_tf_records, write_safetensors):
        write()
    written = {name: {"elements": list(dataset.as_numpy_iterator())} for name, dataset in pipelines().items()}
    for name, dataset, buffer, repetitions in shuffles():
        written[name] = {"buffer": buffer, "repetitions": repetitions, "elements": list(dataset.as_numpy_iterator())}
    write_expected(FOLDER, f"TensorFlow {tf.__version__}", written)


if __name__ == "__main__":
    main()
