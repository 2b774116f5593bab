"""One rank that reduces tensors with Gloo through torch.distributed, for bench/compare.

  gloo_allreduce.py RANK RANKS FILE INTERFACE

FILE is a path for the rendezvous, and INTERFACE the network device that Gloo uses. Executes each line of its input, "BYTES
CALLS", which all ranks get, and answers with the line "done" and the median and the mean of the seconds of a call.
"""
import json
import os
import statistics
import sys
import time

rank, ranks, rendezvous, interface = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch
import torch.distributed as dist


def seconds_of(tensor):
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    print("ready", flush=True)
    tensors = {}
    for line in sys.stdin:
        size, calls = map(int, line.split())
        if size not in tensors:
            tensors = {size: torch.empty(size // 4)}
        tensor = tensors[size].fill_(1)
        dist.all_reduce(tensor)
        assert (tensor == ranks).all()
        seconds = [seconds_of(tensor) for _ in range(calls)]
        print("done", json.dumps({"median": statistics.median(seconds), "mean": statistics.mean(seconds)}), flush=True)


if __name__ == "__main__":
    main()
