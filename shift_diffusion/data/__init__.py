"""From any pictures to arrays ready for training: sources, decoding, the prepared store, text, augmentation."""
