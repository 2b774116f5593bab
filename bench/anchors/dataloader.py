"""Reads files with torch's DataLoader for bench/compare: two workers, each of which reads one half of the file.

  dataloader.py FOLDER

Executes each line of its input, "csv FILE MIDDLE" or "tfrecord FILE MIDDLE", and answers with the line "done" and the records
and seconds. MIDDLE is the place in the file where the second half begins. The dataset makes whole batches of 1,024 records,
which is faster than to let the DataLoader stack records. Needs torch and numpy, and protobuf in the FOLDER.
"""
import csv
import json
import struct
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from data_files import FLOATS, INTS, TEXTS

sys.path.append(sys.argv[1])
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

BATCH = 1024


def example_class():
    """Returns the class that protoc would generate for tf.train.Example: a generated file holds the same descriptors."""
    def field(message, name, number, kind, repeated=False, type_name=None):
        added = message.field.add(name=name, number=number, type=kind, label=3 if repeated else 1)
        if type_name:
            added.type_name = ".tensorflow." + type_name
        return added

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, kind in [("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT), ("Int64List", kinds.TYPE_INT64)]:
        field(file.message_type.add(name=name), "value", 1, kind, True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(["bytes_list", "float_list", "int64_list"], 1):
        type_name = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}[name]
        field(feature, name, number, kinds.TYPE_MESSAGE, type_name=type_name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, kinds.TYPE_STRING)
    field(entry, "value", 2, kinds.TYPE_MESSAGE, type_name="Feature")
    field(features, "feature", 1, kinds.TYPE_MESSAGE, True, "Features.FeatureEntry")
    field(file.message_type.add(name="Example"), "features", 1, kinds.TYPE_MESSAGE, type_name="Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


EXAMPLE = example_class()


class Lines:
    """The lines of one half of a file."""

    def __init__(self, path, begin, end):
        self.path, self.begin, self.end = path, begin, end

    def __iter__(self):
        place = self.begin
        with open(self.path, newline="", encoding="utf-8") as file:
            file.seek(place)
            for line in file:
                place += len(line)  # All characters are ASCII.
                if self.end and place > self.end:
                    return
                yield line


def csv_records(path, begin, end):
    rows = csv.reader(Lines(path, begin, end))
    if begin == 0:
        next(rows)
    floats, texts = len(INTS), len(INTS) + len(FLOATS)
    for row in rows:
        yield list(map(int, row[:floats])), list(map(float, row[floats:texts])), row[texts:]


def tfrecord_records(path, begin, end):
    with open(path, "rb", buffering=1 << 20) as file:
        file.seek(begin)
        place = begin
        while not end or place < end:
            head = file.read(12)
            if not head:
                return
            length = struct.unpack_from("<Q", head)[0]
            feature = EXAMPLE.FromString(file.read(length)).features.feature
            file.read(4)
            place += 16 + length
            yield ([feature[name].int64_list.value[0] for name in INTS], [feature[name].float_list.value[0] for name in FLOATS],
                   [feature[name].bytes_list.value[0] for name in TEXTS])


class Batches(IterableDataset):
    def __init__(self, records, path, middle):
        self.records, self.path, self.middle = records, path, middle

    def __iter__(self):
        begin, end = (0, self.middle) if get_worker_info().id == 0 else (self.middle, 0)
        ints, floats, texts = [], [], []
        for record in self.records(self.path, begin, end):
            ints.append(record[0])
            floats.append(record[1])
            texts.append(record[2])
            if len(ints) == BATCH:
                yield self.batch(ints, floats, texts)
                ints, floats, texts = [], [], []
        if ints:
            yield self.batch(ints, floats, texts)

    @staticmethod
    def batch(ints, floats, texts):
        return torch.from_numpy(np.array(ints, np.int64)), torch.from_numpy(np.array(floats, np.float32)), texts


def main():
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        what, path, middle = line.split()
        start = time.perf_counter()
        records = {"csv": csv_records, "tfrecord": tfrecord_records}[what]
        count = 0
        for ints, _, _ in DataLoader(Batches(records, path, int(middle)), batch_size=None, num_workers=2):
            count += len(ints)
        print("done", json.dumps({"records": count, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
