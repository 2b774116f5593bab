"""The records that `bench/compare data` reads: 40 fields, which are 10 integers, 20 floats and 10 texts.

  data_files.py FILE BLOCKS        writes a CSV file

A file has BLOCKS times the same block of about 10 MB, so that it is written quickly. Prints a JSON object with the length of
the head, and the length and the number of records of a block.
"""
import json
import random
import sys

INTS = [f"i{i}" for i in range(10)]
FLOATS = [f"f{i}" for i in range(20)]
TEXTS = [f"s{i}" for i in range(10)]
NAMES = INTS + FLOATS + TEXTS
TEXT_BYTES = 16
BLOCK = 10_000_000  # Bytes.


def records():
    """Yields records without an end, the same in each run."""
    choice = random.Random(22)
    words = ["".join(choice.choices("abcdefghijklmnopqrstuvwxyz", k=choice.randint(4, 12))) for _ in range(10_000)]
    while True:
        yield ([choice.randrange(-1000, 1_000_000) for _ in INTS], [choice.gauss(0, 100) for _ in FLOATS],
               choice.choices(words, k=len(TEXTS)))


def block_of(encode):
    """Returns the records of a block, which `encode` turns into bytes."""
    block, size = [], 0
    for record in records():
        block.append(encode(*record))
        size += len(block[-1])
        if size >= BLOCK:
            return block


def write_blocks(path, blocks, head, block, count):
    """Writes a file of equal blocks, and prints what it has written."""
    with open(path, "wb") as file:
        file.write(head)
        for _ in range(blocks):
            file.write(block)
    print(json.dumps({"head": len(head), "block": len(block), "records": count}))


def csv_line(ints, floats, texts):
    return ",".join([*map(str, ints), *(f"{number:.6g}" for number in floats), *texts]).encode() + b"\n"


if __name__ == "__main__":
    lines = block_of(csv_line)
    write_blocks(sys.argv[1], int(sys.argv[2]), ",".join(NAMES).encode() + b"\n", b"".join(lines), len(lines))
