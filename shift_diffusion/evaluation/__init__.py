"""How good a model is: distances between sets of pictures, caption match, PSNR, spectra, and what the numbers mean."""
