#!/usr/bin/env python3
"""Writes a batch of examples and the figures that scikit-learn computes for them, for metric_test.cc.

usage: python trireme/metric/testdata/write_with_sklearn.py > trireme/metric/testdata/sklearn.json

Needs scikit-learn and scipy. The figures are computed once without weights and once with them. The tests compare with the
file, so they need neither. The same version of numpy gives the same examples. Written with scikit-learn 1.7.2.
"""
import json

import numpy as np
from sklearn import metrics

EXAMPLES, CLASSES, THRESHOLDS = 103, 7, 200


def figures(batch, weights):
    arrays = {name: np.array(values) for name, values in batch.items()}
    classes, scores = arrays["classes"], arrays["scores"]
    truth, probabilities = arrays["truth"], arrays["probabilities"]
    answers = probabilities > 0.5
    everything = {"sample_weight": weights}
    return {
        "accuracy": metrics.accuracy_score(classes, scores.argmax(1), **everything),
        "top_1_accuracy": metrics.top_k_accuracy_score(classes, scores, k=1, **everything),
        "top_3_accuracy": metrics.top_k_accuracy_score(classes, scores, k=3, **everything),
        "binary_accuracy": metrics.accuracy_score(truth, answers, **everything),
        "precision": metrics.precision_score(truth, answers, **everything),
        "recall": metrics.recall_score(truth, answers, **everything),
        "precision_at_0.8": metrics.precision_score(truth, probabilities > 0.8, **everything),
        "recall_at_0.8": metrics.recall_score(truth, probabilities > 0.8, **everything),
        "auc": metrics.roc_auc_score(truth, probabilities, **everything),
        "mean_absolute_error": metrics.mean_absolute_error(arrays["values"], arrays["predictions"], **everything),
        "mean_squared_error": metrics.mean_squared_error(arrays["values"], arrays["predictions"], **everything),
    }


def main():
    random = np.random.default_rng(7)
    classes = random.integers(0, CLASSES, EXAMPLES)
    classes[:CLASSES] = range(CLASSES)
    scores = random.normal(size=(EXAMPLES, CLASSES)) + 1.2 * np.eye(CLASSES)[classes]
    truth = random.integers(0, 2, EXAMPLES)
    # A threshold is never between two outputs of the same interval, so that the areas are the same.
    intervals = np.clip(random.normal(85 + 35 * truth, 40), 0, THRESHOLDS - 2).astype(int)
    values = random.normal(size=(EXAMPLES, 2))
    batch = {
        "classes": classes.tolist(),
        "scores": scores.round(4).tolist(),
        "truth": truth.tolist(),
        "probabilities": ((intervals + 0.5) / (THRESHOLDS - 1)).round(6).tolist(),
        "values": values.round(4).tolist(),
        "predictions": (values + random.normal(size=values.shape) / 3).round(4).tolist(),
    }
    weights = random.uniform(0.1, 3, EXAMPLES).round(3)
    weights[::10] = 0
    result = {
        "batch": {**batch, "weights": weights.tolist()},
        "figures": figures(batch, None),
        "weighted_figures": figures(batch, weights),
    }
    print(json.dumps(result).replace('], "', '],\n"').replace('}, "', '},\n"'))


if __name__ == "__main__":
    main()
