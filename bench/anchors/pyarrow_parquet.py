"""Reads a Parquet file with pyarrow for bench/compare, with two threads, and writes it.

  pyarrow_parquet.py write FILE MB      writes the 30 columns of numbers of data_files.py, about MB megabytes
  pyarrow_parquet.py read FILE          reads it once for each line of its input, in batches of 1,024 rows as numpy arrays,
                                        and answers with the line "done" and the records and seconds

Needs pyarrow and numpy, which bench/compare installs.
"""
import json
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_files import FLOATS, INTS

THREADS, BATCH = 2, 1024


def write(path, megabytes):
    random = np.random.default_rng(22)
    rows = megabytes * 1_000_000 // (8 * len(INTS) + 4 * len(FLOATS))
    columns = {name: random.integers(-1000, 1_000_000, rows) for name in INTS}
    columns.update({name: random.normal(0, 100, rows).astype(np.float32) for name in FLOATS})
    pq.write_table(pa.table(columns), path, row_group_size=128 << 10)
    print(json.dumps({"records": rows}))


def read(path):
    pa.set_cpu_count(THREADS)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        count = 0
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            arrays = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            count += len(arrays[0])
        print("done", json.dumps({"records": count, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2])
