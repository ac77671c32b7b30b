"""Which file each sample is, whether it is sound, and its pixels on the torchvision path."""
