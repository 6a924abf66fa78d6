"""Numbers of each cell in the `obsm` of an `.h5ad` file, by AnnData's specification."""

from pathlib import Path

from torch import Tensor

from silentgrad.lab.data.formats import reading
from silentgrad.lab.data.h5ad import required_h5py

ARRAY = {"encoding-type": "array", "encoding-version": "0.2.0"}
MAPPING = {"encoding-type": "dict", "encoding-version": "0.1.0"}


def put_obsm(path: Path, name: str, values: Tensor) -> None:
    """Writes numbers of each cell into a file, in place of others of that name.

    Args:
        path: The file, which is changed.
        name: Name of the numbers.
        values: The numbers, `(cells, ...)`, in the order of the file.

    Raises:
        DataError: The file is no such file, or h5py is not installed.
    """
    h5py = required_h5py(path)
    with reading(path, "an .h5ad file"), h5py.File(path, "r+") as file:
        obsm = file.require_group("obsm")
        obsm.attrs.update(MAPPING)
        if name in obsm:
            del obsm[name]
        obsm[name] = values.numpy()
        obsm[name].attrs.update(ARRAY)
