"""Images: where they come from, how they are split, and how they reach a model."""

from silentgrad.data.catalogue import NAMES, load
from silentgrad.data.formats import DataError
from silentgrad.data.images import Images, dequantise
from silentgrad.data.loader import Batches, Together
from silentgrad.data.module import ImageData

__all__ = ["NAMES", "Batches", "DataError", "ImageData", "Images", "Together", "dequantise", "load"]
