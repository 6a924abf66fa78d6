"""The content of a whole `summary.json`, for the runs that tests make up."""

from typing import Any

WHOLE: dict[str, Any] = {
    "bpd": 2.5,
    "mse": 0.02,
    "kld": 7.5,
    "active": 6,
    "exactness": "exact",
    "unit": "BPD",
    "seconds": 75.0,
    "epochs": 20,
    "best_epoch": 20,
    "train_images": 100,
    "parameters": 1000,
}
