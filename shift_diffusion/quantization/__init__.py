"""Int8 for deployment: convert, account for every layer, save without pickle, load without the float model."""

from shift_diffusion.quantization.saving import load_quantized

__all__ = ["load_quantized"]
