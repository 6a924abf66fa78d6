"""The content of a whole `summary.json`, for the runs that tests make up."""

from typing import Any

WHOLE: dict[str, Any] = {
    "unit": "BPD",
    "figure": 2.5,
    "metrics": {"mse": 0.02},
    "kld": 7.5,
    "active": 6,
    "exactness": "exact",
    "seconds": 75.0,
    "epochs": 20,
    "best_epoch": 20,
    "training_examples": 100,
    "parameters": 1000,
}
