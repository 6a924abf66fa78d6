"""The options of `silentgrad demo`."""

from pathlib import Path


def demo(seed: int = 0, folder: Path | None = None) -> None:
    """Trains without and with the guide, and the silent circuit, and shows the three side by side.

    All three see the embedded 8x8 digits for 60 epochs; less than a minute of processor time.

    Args:
        seed: Seed of all three runs.
        folder: Folder of the runs and of the page that compares them, which is made; runs/demo-NUMBER if absent.
    """
    # Here, so that --help does not wait for Lightning and matplotlib.
    from silentgrad.lab.cli.demonstration import demonstrate

    demonstrate(seed, folder)
