"""Prints the trials a second of Optuna with a random sampler in one process: what the bookkeeping alone costs."""

import time

import optuna

optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
began = time.perf_counter()
study.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=1000)
print(1000 / (time.perf_counter() - began))
