"""Trains the net of the case step_mlp with Keras 3 on its torch backend for bench/compare, in one process.

  keras_torch_fit.py FOLDER

Executes each line of its input, "fit STEPS EPOCHS" or "fit_jit STEPS EPOCHS", and answers with the line "done" and a JSON
object: the steps, the seconds that fit() took, and the loss of the last epoch. fit_jit uses torch.compile, which is faster,
but takes half a minute for its first step. Needs keras, and torch in the FOLDER, so that both sides of the comparison use
the same LibTorch.
"""
import json
import os
import sys
import time

os.environ["KERAS_BACKEND"] = "torch"
sys.path.append(sys.argv[1])

import keras
import numpy as np
import torch

WIDTH, CLASSES, BATCH = 64, 10, 32


def make_model(jit):
    model = keras.Sequential([
        keras.Input((WIDTH,)),
        keras.layers.Dense(WIDTH, activation="relu"),
        keras.layers.Dense(WIDTH, activation="relu"),
        keras.layers.Dense(CLASSES),
    ])
    # The torch backend takes one step per execution only.
    model.compile(optimizer=keras.optimizers.Adam(1e-4), steps_per_execution=1, jit_compile=jit,
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main():
    torch.set_num_threads(1)
    keras.utils.set_random_seed(1)
    models, data = {"fit": make_model(False), "fit_jit": make_model(True)}, {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, steps, epochs = line.split()
        count = int(steps) * BATCH
        if count not in data:
            random = np.random.default_rng(1)
            data[count] = (random.standard_normal((count, WIDTH), dtype=np.float32), random.integers(0, CLASSES, count))
        x, y = data[count]
        start = time.perf_counter()
        history = models[name].fit(x, y, batch_size=BATCH, epochs=int(epochs), shuffle=True, verbose=0)
        report = {"steps": int(steps) * int(epochs), "seconds": time.perf_counter() - start, "loss": history.history["loss"][-1]}
        print("done", json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
