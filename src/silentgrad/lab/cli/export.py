"""`silentgrad export`."""

from pathlib import Path

from silentgrad.lab.cli.console import say
from silentgrad.lab.cli.options import require_folder
from silentgrad.lab.runs.folder import ExportFolder, RunFolder
from silentgrad.lab.training.export import export_run


def export(run: Path, folder: Path | None = None) -> None:
    """Exports a finished run: weights (safetensors), encoder and decoder (ONNX), each checked, and a model card.

    Args:
        run: Folder of the finished run.
        folder: Folder to write the files to; the folder export in the run's own if absent.
    """
    output = folder or RunFolder(run).export
    require_folder(output)
    differences = export_run(run, output)
    for name, difference in differences.items():
        say(f"{name}: ONNX Runtime differs from torch by at most {difference:.1e} of the largest value")
    files = ExportFolder(output)
    names = [files.weights.name]
    for network in differences:
        names.append(files.network(network).name)
    names.append(files.card.name)
    say(f"files: {output}/{', '.join(names)}")
