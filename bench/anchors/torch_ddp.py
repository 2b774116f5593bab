"""One rank that trains with PyTorch's DistributedDataParallel over Gloo, for bench/compare.

  torch_ddp.py RANK RANKS FILE

FILE is a path for the rendezvous. Executes each line of its input, "step mlp|resnet BATCH STEPS", which all ranks get, and
answers with the line "done" and the seconds of the steps and the loss of the last one.
"""
import json
import os
import sys
import time

rank, ranks, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch
import torch.distributed as dist
from torch import nn


def convolution(inputs, outputs, kernel, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """A block of three convolutions beside a shortcut."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.first = convolution(inputs, width, 1, 1)
        self.second = convolution(width, width, 3, stride)
        self.third = convolution(width, 4 * width, 1, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x):
        inner = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.relu(self.third(inner) + self.shortcut(x))


def make_resnet():
    layers = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate([3, 4, 6, 3]):
        for i in range(blocks):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if stage > 0 and i == 0 else 1))
            inputs = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def make_mlp():
    return nn.Sequential(nn.Linear(1024, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 3072),
                         nn.ReLU(), nn.Linear(3072, 1024))


class Training:
    def __init__(self, name, batch):
        torch.manual_seed(1)
        self.net = nn.parallel.DistributedDataParallel(make_mlp() if name == "mlp" else make_resnet())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        torch.manual_seed(2 + rank)
        self.x = torch.randn(batch, 1024) if name == "mlp" else torch.randn(batch, 3, 112, 112)
        self.y = torch.randn(batch, 1024) if name == "mlp" else torch.randn(batch, 1000)

    def step(self):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    print("ready", flush=True)
    trainings = {}
    for line in sys.stdin:
        _, name, batch, steps = line.split()
        if (name, batch) not in trainings:
            trainings[name, batch] = Training(name, int(batch))
        training = trainings[name, batch]
        start = time.perf_counter()
        for _ in range(int(steps)):
            loss = training.step()
        print("done", json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
