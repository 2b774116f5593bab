"""Saves checkpoints with torch.distributed.checkpoint (DCP), for bench/compare: 4 ranks as processes, over gloo.

  dcp.py DIRECTORY MIB

Each rank has MIB MiB of random numbers, in 16 tensors of its own. Executes each line of its input and answers with the line
"done": "tuned" saves with four threads in each rank and synced files, "default" with the defaults of FileSystemWriter,
"remove" removes the checkpoint.
"""
import multiprocessing as mp
import os
import shutil
import sys
import tempfile
import warnings

RANKS, TENSORS = 4, 16


def run_rank(rank, rendezvous, directory, mib, commands):
    os.dup2(2, 1)  # The standard output has the answers of the first process.
    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    state = {f"rank_{rank}/table_{i}": torch.rand(mib * 2**20 // 4 // TENSORS) for i in range(TENSORS)}
    writers = {"tuned": {"thread_count": 4, "sync_files": True}, "default": {}}
    dist.barrier()
    commands.send("ready")
    while True:
        command = commands.recv()
        if command == "end":
            break
        # save() returns on each rank once all ranks have written and the metadata exists.
        dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, **writers[command]))
        commands.send("done")
    dist.destroy_process_group()


def main():
    directory, mib = os.path.join(sys.argv[1], "dcp"), int(sys.argv[2])
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, ranks = [], []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            pipes.append(ours)
            ranks.append(context.Process(target=run_rank, daemon=True,
                                         args=(rank, os.path.join(folder, "rendezvous"), directory, mib, theirs)))
            ranks[-1].start()
            theirs.close()
        answers = [pipe.recv() for pipe in pipes]
        print(answers[0], flush=True)
        for line in sys.stdin:
            command = line.strip()
            if command == "remove":
                shutil.rmtree(directory, ignore_errors=True)
            else:
                for pipe in pipes:
                    pipe.send(command)
                for pipe in pipes:
                    pipe.recv()
            print("done", flush=True)
        for pipe in pipes:
            pipe.send("end")
        for rank in ranks:
            rank.join(20)


if __name__ == "__main__":
    main()
