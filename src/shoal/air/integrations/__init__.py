"""Trackers of experiments that others keep: MLflow, Weights & Biases, Comet."""
