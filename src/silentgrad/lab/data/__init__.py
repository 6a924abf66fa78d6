"""Images: where they come from, how they are split, and how they reach a model."""

from silentgrad.lab.data.catalogue import NAMES, load
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.images import Images, dequantise
from silentgrad.lab.data.loader import Batches, Together
from silentgrad.lab.data.module import ImageData

__all__ = ["NAMES", "Batches", "DataError", "ImageData", "Images", "Together", "dequantise", "load"]
