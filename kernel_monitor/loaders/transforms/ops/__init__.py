"""The operations that DALI can do as torchvision does them, one idea a module."""
