"""Trains a net with PyTorch on the digits 0 to 4, and writes its weights for the example finetune.

  pretrain_digits.py DIGITS.csv WEIGHTS.safetensors
"""
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn


class DigitsNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                                      nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(512, classes)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    torch.manual_seed(1)
    torch.set_num_threads(1)
    table = torch.from_numpy(np.loadtxt(sys.argv[1], delimiter=",", dtype=np.float32))
    table = table[table[:, 64] < 5]
    x, y = table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    net = DigitsNet(5)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
    for _ in range(5):
        for batch in torch.randperm(len(x)).split(32):
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_file(net.state_dict(), sys.argv[2])
    right = (net(x).argmax(1) == y).float().mean().item()
    print(f"PyTorch trained on {len(x)} digits below 5: accuracy {right:.3f}")


if __name__ == "__main__":
    main()
