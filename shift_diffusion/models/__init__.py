"""Networks: the shift operator, the nested UNet that grows, its conditioning, and frozen perceptual networks."""
